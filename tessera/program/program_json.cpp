#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/errors.h"
#include "tessera/files/python_json.h"
#include "tessera/program/exported_program.h"
#include "tessera/program/graph_json.h"
#include "tessera/program/signature_json.h"

namespace tessera::program {
namespace {

using files::JsonCursor;

std::vector<Payload> payloads_from_json(const JsonCursor& json) {
  std::vector<Payload> out;
  json.at("config").each_member([&](std::string_view name, const JsonCursor& item) {
    Payload payload{.name = std::string(name),
                    .path_name = item.text("path_name"),
                    .is_param = item.boolean("is_param"),
                    .use_pickle = item.boolean("use_pickle"),
                    .meta = {}};
    if (const auto meta = item.find("tensor_meta")) payload.meta = tensor_meta_from_json(*meta);
    out.push_back(std::move(payload));
  });
  return out;
}

Json payloads_to_json(const std::vector<Payload>& payloads) {
  Json config = Json::object();
  for (const auto& payload : payloads) {
    Json meta;
    if (payload.meta) meta = tensor_meta_to_json(*payload.meta);
    config[payload.name] = {{"path_name", payload.path_name},
                            {"is_param", payload.is_param},
                            {"use_pickle", payload.use_pickle},
                            {"tensor_meta", std::move(meta)}};
  }
  Json out = Json::object();
  out["config"] = std::move(config);
  return out;
}

std::vector<std::string> texts_from_json(const JsonCursor& json) {
  std::vector<std::string> out;
  for (const JsonCursor item : json) out.push_back(item.text());
  return out;
}

std::optional<int64_t> optional_int(const JsonCursor& json, std::string_view key) {
  const auto found = json.find(key);
  return found ? std::optional(found->integer()) : std::nullopt;
}

void check_version(const JsonCursor& json) {
  const JsonCursor version = json.at("schema_version");
  const int64_t major = version.integer("major");
  if (major != kSchemaMajor) {
    version.fail(join_text("is ", major, ".", version.integer("minor"), "; this library reads ",
                           kSchemaMajor, ".x (torch 2.5 to 2.13): export the program again"));
  }
}

/// The call's structure is that of the root module's entry, which has an empty name.
void read_call_spec(const JsonCursor& module, ExportedProgram& program) {
  const auto entries = module.find("module_call_graph");
  if (!entries) return;
  for (const JsonCursor entry : *entries) {
    const auto signature = entry.find("signature");
    if (!entry.text("fqn").empty() || !signature) continue;
    program.in_spec = signature->text("in_spec");
    program.out_spec = signature->text("out_spec");
    if (const auto names = signature->find("forward_arg_names")) {
      program.forward_arg_names = texts_from_json(*names);
    }
    return;
  }
}

/// The members of `text`, with those of `typed` at their positions; typed members that `text` lacks
/// come first.
Json merge(const std::string& text, Json typed) {
  const Json kept = text.empty() ? Json::object() : Json::parse(text);
  Json out = Json::object();
  for (const auto& [key, value] : typed.items()) {
    if (!kept.contains(key)) out[key] = value;
  }
  for (const auto& [key, value] : kept.items()) {
    out[key] = typed.contains(key) ? typed[key] : value;
  }
  return out;
}

/// The members of an object with null in place of those that are represented by types: keeps their
/// position, not their contents.
std::string skeleton(const JsonCursor& json, std::initializer_list<std::string_view> typed) {
  Json out = Json::object();
  json.each_member([&](std::string_view key, const JsonCursor& value) {
    const bool is_typed = std::ranges::find(typed, key) != typed.end();
    out[std::string(key)] = is_typed ? Json() : value.json();
  });
  return out.dump();
}

Json ranges_to_json(const ExportedProgram& program) {
  Json out = Json::object();
  for (const auto& [symbol, range] : program.range_constraints) {
    Json item = {{"min_val", nullptr}, {"max_val", nullptr}};
    if (range.min) item["min_val"] = *range.min;
    if (range.max) item["max_val"] = *range.max;
    out[symbol] = std::move(item);
  }
  return out;
}

}  // namespace

const Payload* ExportedProgram::find_payload(std::string_view name) const {
  for (const auto* list : {&weights, &constants}) {
    const auto found = std::ranges::find(*list, name, &Payload::name);
    if (found != list->end()) return &*found;
  }
  return nullptr;
}

ExportedProgram parse_program(const ProgramTexts& texts, std::string_view document) {
  ExportedProgram program;
  const std::string model_name = join_text(document, ": models/model.json");
  const Json model = files::parse_json(texts.model, model_name);
  const JsonCursor root(model, model_name);
  check_version(root);
  const JsonCursor module = root.at("graph_module");
  program.graph = graph_from_json(module.at("graph"));
  program.signature = signature_from_json(module.at("signature"), program.graph);
  read_call_spec(module, program);
  root.at("range_constraints").each_member([&](std::string_view symbol, const JsonCursor& range) {
    program.range_constraints.emplace_back(
        std::string(symbol), Range{optional_int(range, "min_val"), optional_int(range, "max_val")});
  });
  if (const auto version = root.find("torch_version")) program.torch_version = version->text();
  if (const auto verifiers = root.find("verifiers"))
    program.verifiers = texts_from_json(*verifiers);
  program.module_json = skeleton(module, {"graph", "signature"});
  program.program_json =
      skeleton(root, {"graph_module", "range_constraints", "torch_version", "verifiers"});

  const std::string weights_name = join_text(document, ": data/weights/model_weights_config.json");
  const Json weights = files::parse_json(texts.weights_config, weights_name);
  program.weights = payloads_from_json(JsonCursor(weights, weights_name));
  const std::string constants_name =
      join_text(document, ": data/constants/model_constants_config.json");
  const Json constants = files::parse_json(texts.constants_config, constants_name);
  program.constants = payloads_from_json(JsonCursor(constants, constants_name));
  return program;
}

ProgramRecords print_program(const ExportedProgram& program) {
  Json module = Json::object();
  module["graph"] = graph_to_json(program.graph);
  module["signature"] = signature_to_json(program.signature, program.graph);
  Json root = Json::object();
  root["graph_module"] = merge(program.module_json, std::move(module));
  root["range_constraints"] = ranges_to_json(program);
  root["verifiers"] = program.verifiers;
  root["torch_version"] = program.torch_version;
  return {files::python_json(merge(program.program_json, std::move(root))),
          files::python_json(payloads_to_json(program.weights)),
          files::python_json(payloads_to_json(program.constants))};
}

}  // namespace tessera::program
