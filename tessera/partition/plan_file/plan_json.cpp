#include <nlohmann/json.hpp>

#include "tessera/base/errors.h"
#include "tessera/files/json_cursor.h"
#include "tessera/partition/plan_file/plan.h"

namespace tessera::partition {
namespace {

constexpr Style kStyles[] = {Style::colwise, Style::rowwise, Style::sequence, Style::vocabulary,
                             Style::replicate};

using Texts = std::vector<std::pair<std::string, std::string>>;

Texts texts_of(const files::JsonCursor& json) {
  Texts out;
  json.each_member([&](std::string_view key, const files::JsonCursor& value) {
    const std::string text = value.text();
    try {
      parse_placements(text);
    } catch (const InvalidArgument& error) {
      value.fail(join_text("is ", text, ", which is not a list of placements: ", error.what()));
    }
    out.emplace_back(key, text);
  });
  return out;
}

nlohmann::ordered_json json_of(const Texts& texts) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const auto& [key, text] : texts) out[key] = text;
  return out;
}

}  // namespace

std::string_view style_name(Style style) {
  switch (style) {
    case Style::colwise:
      return "colwise";
    case Style::rowwise:
      return "rowwise";
    case Style::sequence:
      return "sequence";
    case Style::vocabulary:
      return "vocabulary";
    case Style::replicate:
      return "replicate";
  }
  return "";
}

Plan Plan::parse(std::string_view text, std::string_view document) {
  const auto json = files::parse_json(text, document);
  const files::JsonCursor root(json, document);
  Plan plan;
  root.each_member([&](std::string_view key, const files::JsonCursor& value) {
    if (key == "axis") {
      plan.axis = value.text();
    } else if (key == "modules") {
      value.each_member([&](std::string_view path, const files::JsonCursor& style) {
        const std::string name = style.text();
        for (const Style known : kStyles) {
          if (name == style_name(known)) {
            plan.modules.emplace_back(path, known);
            return;
          }
        }
        style.fail(join_text("is ", name,
                             ", which is not a style: colwise, rowwise, sequence, vocabulary or "
                             "replicate"));
      });
    } else if (key == "weights") {
      plan.weights = texts_of(value);
    } else if (key == "values") {
      plan.values = texts_of(value);
    } else if (key == "inputs") {
      plan.inputs = texts_of(value);
    } else if (key == "outputs") {
      plan.outputs = texts_of(value);
    } else if (key == "rest") {
      const std::string rest = value.text();
      if (rest != "auto" && rest != "replicate")
        value.fail(join_text("is ", rest, ", not auto or replicate"));
      plan.rest_auto = rest == "auto";
    } else {
      value.fail("is not part of a plan: axis, modules, weights, values, inputs, outputs or rest");
    }
  });
  return plan;
}

std::string Plan::to_json() const {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  if (!axis.empty()) out["axis"] = axis;
  for (const auto& [path, style] : modules) out["modules"][path] = style_name(style);
  if (!weights.empty()) out["weights"] = json_of(weights);
  if (!values.empty()) out["values"] = json_of(values);
  if (!inputs.empty()) out["inputs"] = json_of(inputs);
  if (!outputs.empty()) out["outputs"] = json_of(outputs);
  if (rest_auto) out["rest"] = "auto";
  return out.dump(2) + "\n";
}

}  // namespace tessera::partition
