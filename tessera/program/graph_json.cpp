#include "tessera/program/graph_json.h"

#include <nlohmann/json.hpp>

#include "tessera/base/errors.h"

namespace tessera::program {
namespace {

using files::JsonCursor;

/// The tables of a graph's values, in the order of the file format.
struct Table {
  std::string_view member;
  ValueKind kind;
  bool required;
};
constexpr Table kTables[] = {{"tensor_values", ValueKind::tensor, true},
                             {"sym_int_values", ValueKind::sym_int, true},
                             {"sym_bool_values", ValueKind::sym_bool, true},
                             {"custom_obj_values", ValueKind::custom_obj, false},
                             {"sym_float_values", ValueKind::sym_float, false}};

Value value_from_json(std::string_view name, ValueKind kind, const JsonCursor& json) {
  Value value{.name = std::string(name), .kind = kind, .tensor = {}, .size = {}, .json = {}};
  if (kind == ValueKind::tensor) {
    value.tensor = tensor_meta_from_json(json);
  } else if (kind == ValueKind::sym_int) {
    value.size = size_from_json(json);
  } else {
    value.json = json.json().dump();
  }
  return value;
}

Json value_to_json(const Value& value) {
  if (value.tensor) return tensor_meta_to_json(*value.tensor);
  if (value.size) return size_to_json(*value.size);
  return Json::parse(value.json);
}

void read_values(const JsonCursor& json, Graph& graph) {
  for (const Table& table : kTables) {
    const auto found = table.required ? json.at(table.member) : json.find(table.member);
    if (!found) continue;
    found->each_member([&](std::string_view name, const JsonCursor& item) {
      if (graph.find_value(name)) item.fail(join_text("defines ", name, " a second time"));
      graph.add_value(value_from_json(name, table.kind, item));
    });
  }
}

std::vector<Argument> arguments_from_json(const JsonCursor& json, const Graph& graph) {
  std::vector<Argument> out;
  for (const JsonCursor item : json) out.push_back(argument_from_json(item, graph));
  return out;
}

Json arguments_to_json(const std::vector<Argument>& arguments, const Graph& graph) {
  Json out = Json::array();
  for (const auto& argument : arguments) out.push_back(argument_to_json(argument, graph));
  return out;
}

PassedBy passed_by_from_json(const JsonCursor& json) {
  const int64_t code = json.integer();
  if (code < 0 || code > 2) json.fail(join_text("is ", code, ", not 1 (position) or 2 (keyword)"));
  return static_cast<PassedBy>(code);
}

Node node_from_json(const JsonCursor& json, const Graph& graph) {
  Node node;
  node.target = json.text("target");
  for (const JsonCursor input : json.at("inputs")) {
    NamedArgument named{input.text("name"), argument_from_json(input.at("arg"), graph), {}};
    if (const auto kind = input.find("kind")) named.passed_by = passed_by_from_json(*kind);
    node.inputs.push_back(std::move(named));
  }
  node.outputs = arguments_from_json(json.at("outputs"), graph);
  if (const auto metadata = json.find("metadata")) {
    metadata->each_member([&](std::string_view key, const JsonCursor& text) {
      node.metadata.emplace_back(std::string(key), text.text());
    });
  }
  if (const auto single = json.find("is_hop_single_tensor_return")) {
    node.is_hop_single_tensor_return = single->boolean();
  }
  if (const auto name = json.find("name")) node.name = name->text();
  node.unknown = unknown_members(
      json, {"target", "inputs", "outputs", "metadata", "is_hop_single_tensor_return", "name"});
  return node;
}

Json node_to_json(const Node& node, const Graph& graph) {
  Json out = {{"target", node.target}, {"inputs", Json::array()}};
  for (const auto& input : node.inputs) {
    Json named = {{"name", input.name}, {"arg", argument_to_json(input.arg, graph)}};
    named["kind"] = nullptr;
    if (input.passed_by) named["kind"] = static_cast<int64_t>(*input.passed_by);
    out["inputs"].push_back(std::move(named));
  }
  out["outputs"] = arguments_to_json(node.outputs, graph);
  out["metadata"] = Json::object();
  for (const auto& [key, text] : node.metadata) out["metadata"][key] = text;
  out["is_hop_single_tensor_return"] = nullptr;
  if (node.is_hop_single_tensor_return) {
    out["is_hop_single_tensor_return"] = *node.is_hop_single_tensor_return;
  }
  out["name"] = nullptr;
  if (node.name) out["name"] = *node.name;
  add_unknown(out, node.unknown);
  return out;
}

}  // namespace

Graph graph_from_json(const JsonCursor& json) {
  Graph graph;
  read_values(json, graph);
  graph.inputs = arguments_from_json(json.at("inputs"), graph);
  for (const JsonCursor node : json.at("nodes")) graph.nodes.push_back(node_from_json(node, graph));
  graph.outputs = arguments_from_json(json.at("outputs"), graph);
  if (const auto single = json.find("is_single_tensor_return")) {
    graph.is_single_tensor_return = single->boolean();
  }
  graph.unknown = unknown_members(
      json, {"inputs", "outputs", "nodes", "is_single_tensor_return", "tensor_values",
             "sym_int_values", "sym_bool_values", "custom_obj_values", "sym_float_values"});
  return graph;
}

Json graph_to_json(const Graph& graph) {
  Json out = Json::object();
  out["inputs"] = arguments_to_json(graph.inputs, graph);
  out["outputs"] = arguments_to_json(graph.outputs, graph);
  out["nodes"] = Json::array();
  for (const auto& node : graph.nodes) out["nodes"].push_back(node_to_json(node, graph));
  const auto write_table = [&](const Table& table) {
    Json values = Json::object();
    for (const auto& value : graph.values) {
      if (value.kind == table.kind) values[value.name] = value_to_json(value);
    }
    out[std::string(table.member)] = std::move(values);
  };
  for (const Table& table : kTables) {
    if (table.kind == ValueKind::custom_obj) {
      out["is_single_tensor_return"] = graph.is_single_tensor_return;
    }
    write_table(table);
  }
  add_unknown(out, graph.unknown);
  return out;
}

}  // namespace tessera::program
