#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/base/errors.h"
#include "tessera/program/graph_json.h"

namespace tessera::program {
namespace {

using files::JsonCursor;

/// One function per kind and direction. A list of X is read and written by the functions of X.
class Reader {
 public:
  explicit Reader(const Graph& graph) : graph_(graph) {}

  Argument read(const JsonCursor& json) const {
    if (json.size() != 1) json.fail(join_text("has ", json.size(), " members, not exactly one"));
    Argument out;
    json.each_member([&](std::string_view name, const JsonCursor& value) {
      const auto kind = arg_kind_from_wire(name);
      if (!kind) json.fail(join_text("is of a kind that is not known: ", name));
      out = {*kind, data(*kind, value)};
    });
    return out;
  }

 private:
  ValueId value(const JsonCursor& name) const {
    const auto id = graph_.find_value(name.text());
    if (!id) name.fail(join_text("is '", name.text(), "', a value that the graph does not list"));
    return *id;
  }
  ValueId tensor(const JsonCursor& json) const { return value(json.at("name")); }
  std::optional<ValueId> optional_tensor(const JsonCursor& json) const {
    if (json.find("as_none")) return std::nullopt;
    return tensor(json.at("as_tensor"));
  }
  IntOrValue sym_int(const JsonCursor& json) const {
    if (const auto number = json.find("as_int")) return number->integer();
    return value(json.at("as_name"));
  }
  FloatOrValue sym_float(const JsonCursor& json) const {
    if (const auto number = json.find("as_float")) return number->number();
    return value(json.at("as_name"));
  }
  BoolOrValue sym_bool(const JsonCursor& json) const {
    if (const auto given = json.find("as_bool")) return given->boolean();
    return value(json.at("as_name"));
  }
  Subgraph graph(const JsonCursor& json) const {
    return {json.text("name"), std::make_shared<Graph>(graph_from_json(json.at("graph")))};
  }
  static std::complex<double> complex(const JsonCursor& json) {
    return {json.at("real").number(), json.at("imag").number()};
  }
  std::vector<std::pair<std::string, Argument>> members(const JsonCursor& json) const {
    std::vector<std::pair<std::string, Argument>> out;
    json.each_member([&](std::string_view name, const JsonCursor& item) {
      out.emplace_back(std::string(name), read(item));
    });
    return out;
  }

  template <typename Read>
  static auto list(const JsonCursor& json, const Read& read_item) {
    std::vector<decltype(read_item(json))> out;
    for (const JsonCursor item : json) out.push_back(read_item(item));
    return out;
  }

  Argument::Data data(ArgKind kind, const JsonCursor& json) const {
    switch (kind) {
      case ArgKind::none:
        return std::monostate();
      case ArgKind::tensor:
        return tensor(json);
      case ArgKind::optional_tensor:
        return optional_tensor(json);
      case ArgKind::integer:
      case ArgKind::memory_format:
        return json.integer();
      case ArgKind::floating:
        return json.number();
      case ArgKind::boolean:
        return json.boolean();
      case ArgKind::complex:
        return complex(json);
      case ArgKind::string:
      case ArgKind::op:
        return json.text();
      case ArgKind::sym_int:
        return sym_int(json);
      case ArgKind::sym_float:
        return sym_float(json);
      case ArgKind::sym_bool:
        return sym_bool(json);
      case ArgKind::scalar_type:
        return dtype_from_json(json);
      case ArgKind::layout:
        return layout_from_json(json);
      case ArgKind::device:
        return device_from_json(json);
      case ArgKind::graph:
        return graph(json);
      case ArgKind::custom_obj:
        return CustomObject{value(json.at("name")), json.text("class_fqn")};
      case ArgKind::string_to_argument:
        return members(json);
      default:
        return list_data(kind, json);
    }
  }

  Argument::Data list_data(ArgKind kind, const JsonCursor& json) const {
    const auto as_tensor = [this](const JsonCursor& item) { return tensor(item); };
    const auto as_int = [](const JsonCursor& item) { return item.integer(); };
    const auto as_float = [](const JsonCursor& item) { return item.number(); };
    switch (kind) {
      case ArgKind::tensors:
        return list(json, as_tensor);
      case ArgKind::optional_tensors:
        return list(json, [this](const JsonCursor& item) { return optional_tensor(item); });
      case ArgKind::ints:
        return list(json, as_int);
      case ArgKind::floats:
        return list(json, as_float);
      case ArgKind::bools:
        return list(json, [](const JsonCursor& item) { return item.boolean(); });
      case ArgKind::strings:
        return list(json, [](const JsonCursor& item) { return item.text(); });
      case ArgKind::sym_ints:
        return list(json, [this](const JsonCursor& item) { return sym_int(item); });
      case ArgKind::sym_floats:
        return list(json, [this](const JsonCursor& item) { return sym_float(item); });
      case ArgKind::sym_bools:
        return list(json, [this](const JsonCursor& item) { return sym_bool(item); });
      case ArgKind::nested_tensors:
        return list(json, [&](const JsonCursor& inner) { return list(inner, as_tensor); });
      case ArgKind::int_lists:
        return list(json, [&](const JsonCursor& inner) { return list(inner, as_int); });
      case ArgKind::float_lists:
        return list(json, [&](const JsonCursor& inner) { return list(inner, as_float); });
      default:
        json.fail("is of a kind that is not known");
    }
  }

  const Graph& graph_;
};

class Writer {
 public:
  explicit Writer(const Graph& graph) : graph_(graph) {}

  Json write(const Argument& argument) const {
    Json out = Json::object();
    out[std::string(wire_name(argument.kind))] = data(argument);
    return out;
  }

 private:
  const std::string& name(ValueId id) const { return graph_.value(id).name; }

  Json item(std::monostate) const { return true; }
  Json item(ValueId id) const { return {{"name", name(id)}}; }
  Json item(const std::optional<ValueId>& id) const {
    if (!id) return {{"as_none", true}};
    return {{"as_tensor", item(*id)}};
  }
  Json item(int64_t number) const { return number; }
  Json item(bool given) const { return given; }
  Json item(double number) const {
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return number;
  }
  Json item(const std::string& text) const { return text; }
  Json item(DType dtype) const { return dtype_code(dtype); }
  Json item(Layout layout) const { return static_cast<int64_t>(layout); }
  Json item(const Device& device) const { return device_to_json(device); }
  Json item(const Subgraph& body) const {
    return {{"name", body.name}, {"graph", graph_to_json(*body.graph)}};
  }
  Json item(const CustomObject& object) const {
    return {{"name", name(object.value)}, {"class_fqn", object.class_fqn}};
  }
  Json item(const std::complex<double>& number) const {
    return {{"real", item(number.real())}, {"imag", item(number.imag())}};
  }
  Json item(const IntOrValue& either) const { return one_of(either, "as_int"); }
  Json item(const FloatOrValue& either) const { return one_of(either, "as_float"); }
  Json item(const BoolOrValue& either) const { return one_of(either, "as_bool"); }
  Json item(const std::vector<std::pair<std::string, Argument>>& members) const {
    Json out = Json::object();
    for (const auto& [key, argument] : members) out[key] = write(argument);
    return out;
  }
  template <typename T>
  Json item(const std::vector<T>& list) const {
    Json out = Json::array();
    for (size_t i = 0; i < list.size(); ++i) out.push_back(item(static_cast<const T&>(list[i])));
    return out;
  }

  template <typename T>
  Json one_of(const std::variant<T, ValueId>& either, const char* number_name) const {
    Json out = Json::object();
    if (const auto* id = std::get_if<ValueId>(&either)) {
      out["as_name"] = name(*id);
    } else {
      out[number_name] = item(std::get<T>(either));
    }
    return out;
  }

  Json data(const Argument& argument) const {
    return std::visit([this](const auto& given) { return Json(item(given)); }, argument.data);
  }

  const Graph& graph_;
};

}  // namespace

Argument argument_from_json(const JsonCursor& json, const Graph& graph) {
  return Reader(graph).read(json);
}

Json argument_to_json(const Argument& argument, const Graph& graph) {
  return Writer(graph).write(argument);
}

}  // namespace tessera::program
