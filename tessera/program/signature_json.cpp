#include "tessera/program/signature_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "tessera/base/errors.h"
#include "tessera/program/graph_json.h"

namespace tessera::program {
namespace {

using files::JsonCursor;

/// How a spec's argument is written.
enum class ArgForm : uint8_t {
  argument,  // any kind: {"as_tensor": {"name": "x"}}
  tensor,    // {"name": "x"}
  object,    // {"name": "x", "class_fqn": "C"}
  name,      // not a value of the graph
};

template <typename Kind>
struct Row {
  Kind kind;
  std::string_view member;  // of the union
  std::string_view target;  // the member that names its target, or ""
  ArgForm form;
};

constexpr Row<InputKind> kInputs[] = {
    {InputKind::user_input, "user_input", "", ArgForm::argument},
    {InputKind::parameter, "parameter", "parameter_name", ArgForm::tensor},
    {InputKind::buffer, "buffer", "buffer_name", ArgForm::tensor},
    {InputKind::tensor_constant, "tensor_constant", "tensor_constant_name", ArgForm::tensor},
    {InputKind::custom_obj, "custom_obj", "custom_obj_name", ArgForm::object},
    {InputKind::constant_input, "constant_input", "", ArgForm::name},
    {InputKind::token, "token", "", ArgForm::name},
};

constexpr Row<OutputKind> kOutputs[] = {
    {OutputKind::user_output, "user_output", "", ArgForm::argument},
    {OutputKind::loss_output, "loss_output", "", ArgForm::tensor},
    {OutputKind::buffer_mutation, "buffer_mutation", "buffer_name", ArgForm::tensor},
    {OutputKind::parameter_mutation, "parameter_mutation", "parameter_name", ArgForm::tensor},
    {OutputKind::user_input_mutation, "user_input_mutation", "user_input_name", ArgForm::tensor},
    {OutputKind::gradient_to_parameter, "gradient_to_parameter", "parameter_name", ArgForm::tensor},
    {OutputKind::gradient_to_user_input, "gradient_to_user_input", "user_input_name",
     ArgForm::tensor},
    {OutputKind::token, "token", "", ArgForm::name},
};

template <typename Kind, size_t N>
const Row<Kind>& row_of(const Row<Kind> (&rows)[N], Kind kind) {
  return *std::ranges::find(rows, kind, &Row<Kind>::kind);
}

/// The single member of a union, and the row that it names.
template <typename Kind, size_t N>
std::pair<const Row<Kind>*, JsonCursor> choose(const Row<Kind> (&rows)[N], const JsonCursor& json) {
  if (json.size() != 1) json.fail(join_text("has ", json.size(), " members, not exactly one"));
  for (const auto& row : rows) {
    if (const auto found = json.find(row.member)) return {&row, *found};
  }
  json.fail("is of a kind that is not known");
}

ValueId value_named(const JsonCursor& json, const Graph& graph) {
  const auto id = graph.find_value(json.text("name"));
  if (!id) json.at("name").fail("names a value that the graph does not list");
  return *id;
}

Argument read_arg(const JsonCursor& json, ArgForm form, const Graph& graph) {
  if (form == ArgForm::argument) return argument_from_json(json, graph);
  const ValueId id = value_named(json, graph);
  if (form == ArgForm::tensor) return Argument::of_tensor(id);
  return {ArgKind::custom_obj, CustomObject{id, json.text("class_fqn")}};
}

Json write_arg(const Argument& arg, ArgForm form, const Graph& graph) {
  Json out = argument_to_json(arg, graph);
  if (form == ArgForm::argument) return out;
  return out.begin().value();
}

template <typename Spec>
void read_common(const JsonCursor& json, const auto& row, const Graph& graph, Spec& spec) {
  if (row.form != ArgForm::name) spec.arg = read_arg(json.at("arg"), row.form, graph);
  if (!row.target.empty()) spec.target = json.text(row.target);
}

template <typename Spec>
Json write_common(const Spec& spec, const auto& row, const Graph& graph) {
  Json out = Json::object();
  if (row.form != ArgForm::name) out["arg"] = write_arg(*spec.arg, row.form, graph);
  if (!row.target.empty()) out[std::string(row.target)] = spec.target;
  return out;
}

}  // namespace

Signature signature_from_json(const JsonCursor& json, const Graph& graph) {
  Signature out;
  for (const JsonCursor item : json.at("input_specs")) {
    const auto [row, body] = choose(kInputs, item);
    InputSpec spec;
    spec.kind = row->kind;
    read_common(body, *row, graph, spec);
    if (spec.kind == InputKind::buffer) spec.persistent = body.boolean("persistent");
    if (spec.kind == InputKind::constant_input) {
      spec.name = body.text("name");
      spec.constant = body.at("value").json().dump();
    }
    if (spec.kind == InputKind::token) spec.name = body.at("arg").text("name");
    out.inputs.push_back(std::move(spec));
  }
  for (const JsonCursor item : json.at("output_specs")) {
    const auto [row, body] = choose(kOutputs, item);
    OutputSpec spec;
    spec.kind = row->kind;
    read_common(body, *row, graph, spec);
    if (spec.kind == OutputKind::token) spec.name = body.at("arg").text("name");
    out.outputs.push_back(std::move(spec));
  }
  return out;
}

Json signature_to_json(const Signature& signature, const Graph& graph) {
  Json inputs = Json::array();
  for (const auto& spec : signature.inputs) {
    const auto& row = row_of(kInputs, spec.kind);
    Json body = write_common(spec, row, graph);
    if (spec.kind == InputKind::buffer) body["persistent"] = spec.persistent;
    if (spec.kind == InputKind::constant_input) {
      body["name"] = spec.name;
      body["value"] = Json::parse(spec.constant);
    }
    if (spec.kind == InputKind::token) body["arg"]["name"] = spec.name;
    Json item = Json::object();
    item[std::string(row.member)] = std::move(body);
    inputs.push_back(std::move(item));
  }
  Json outputs = Json::array();
  for (const auto& spec : signature.outputs) {
    const auto& row = row_of(kOutputs, spec.kind);
    Json body = write_common(spec, row, graph);
    if (spec.kind == OutputKind::token) body["arg"]["name"] = spec.name;
    Json item = Json::object();
    item[std::string(row.member)] = std::move(body);
    outputs.push_back(std::move(item));
  }
  Json out = Json::object();
  out["input_specs"] = std::move(inputs);
  out["output_specs"] = std::move(outputs);
  return out;
}

}  // namespace tessera::program
