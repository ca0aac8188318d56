#include "cli/program_summary.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tessera/base/errors.h"
#include "tessera/interp/compile.h"
#include "tessera/program/pytree.h"
#include "tessera/program/verify.h"

namespace tessera::cli {
namespace {

using program::Argument;
using program::ExportedProgram;
using program::InputKind;
using program::OutputKind;
using program::Payload;
using program::ValueId;

std::string type_of(const ExportedProgram& program, const std::optional<Argument>& arg) {
  if (!arg) return "fixed at export";
  std::string text;
  each_value(*arg, [&](ValueId id) {
    const auto& value = program.graph.value(id);
    if (value.tensor) {
      text = value.tensor->to_text();
    } else if (value.size) {
      text = join_text("int ", value.size->to_text());
    }
  });
  if (!text.empty()) return text;
  if (arg->kind == program::ArgKind::none) return "None";
  if (const auto* i = std::get_if<int64_t>(&arg->data)) return join_text("fixed: ", *i);
  if (const auto* f = std::get_if<double>(&arg->data)) return join_text("fixed: ", *f);
  if (const auto* b = std::get_if<bool>(&arg->data)) return *b ? "fixed: true" : "fixed: false";
  if (const auto* s = std::get_if<std::string>(&arg->data)) return join_text("fixed: ", *s);
  return join_text("fixed: ", wire_name(arg->kind));
}

/// "4" of {"as_int":4}, as the file has it.
std::string constant_text(const std::string& json) {
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || parsed.size() != 1) return json;
  return parsed.contains("as_none") ? "None" : parsed.begin()->dump();
}

std::vector<ProgramSummary::Tensor> named(std::vector<std::string> names,
                                          const std::vector<std::string>& types,
                                          std::string_view prefix) {
  std::vector<ProgramSummary::Tensor> out;
  for (size_t i = 0; i < types.size(); ++i) {
    out.push_back({names.size() == types.size() ? names[i] : join_text(prefix, i), types[i]});
  }
  return out;
}

void add_ports(const ExportedProgram& program, ProgramSummary& out) {
  std::vector<std::string> inputs;
  for (const auto& spec : program.signature.inputs) {
    if (spec.kind == InputKind::constant_input) {
      inputs.push_back("fixed: " + constant_text(spec.constant));
    }
    if (spec.kind == InputKind::user_input) inputs.push_back(type_of(program, spec.arg));
  }
  std::vector<std::string> outputs;
  for (const auto& spec : program.signature.outputs) {
    if (spec.kind == OutputKind::user_output || spec.kind == OutputKind::loss_output) {
      outputs.push_back(type_of(program, spec.arg));
    }
  }
  std::vector<std::string> input_names;
  if (!program.in_spec.empty()) {
    input_names =
        program::input_names(program::parse_pytree(program.in_spec), program.forward_arg_names);
  }
  std::vector<std::string> output_names;
  if (!program.out_spec.empty()) {
    output_names = program::output_names(program::parse_pytree(program.out_spec));
  }
  out.inputs = named(std::move(input_names), inputs, "arg");
  out.outputs = named(std::move(output_names), outputs, "output");
  for (const auto& [symbol, range] : program.range_constraints) {
    const auto end = [](const std::optional<int64_t>& n) {
      return n ? std::to_string(*n) : std::string("any");
    };
    out.symbols.push_back({symbol, join_text(end(range.min), " to ", end(range.max))});
  }
}

int64_t elements_of(const program::TensorMeta& meta) {
  int64_t count = 1;
  for (const auto& size : meta.sizes) count *= size.hint().value_or(0);
  return count;
}

void add_payloads(const program::Archive& archive, const std::vector<Payload>& payloads,
                  std::string_view folder, ProgramSummary& out) {
  std::map<std::string, std::string> first;  // by record
  for (const auto& payload : payloads) {
    ProgramSummary::Weight weight;
    weight.name = payload.name;
    weight.kind = payload.is_param            ? "parameter"
                  : folder == "data/weights/" ? "buffer"
                                              : "constant";
    weight.type = payload.meta ? payload.meta->to_text() : "a Python object";
    const auto [found, fresh] = first.emplace(payload.path_name, payload.name);
    if (!fresh) {
      weight.tied_to = found->second;
    } else if (const auto* record = archive.record(join_text(folder, payload.path_name))) {
      weight.bytes = record->size;
      out.weight_bytes += record->size;
      if (payload.is_param && payload.meta) out.parameters += elements_of(*payload.meta);
    }
    out.weights.push_back(std::move(weight));
  }
}

void add_ops(const program::Graph& graph, ProgramSummary& out) {
  std::map<std::string, int> counts;
  for (const auto& node : graph.nodes) {
    const std::string name = node.op_name().first;
    ++counts[name.empty() ? node.target : name];
    ++out.nodes;
    const auto* group = node.find("group_name");
    if (group != nullptr && group->kind == program::ArgKind::string) {
      ++out.collectives_of[group->as<std::string>()];
    }
  }
  for (const auto& [name, count] : counts) out.ops.push_back({name, count});
  std::ranges::stable_sort(out.ops, std::greater(), &ProgramSummary::Op::count);
}

}  // namespace

void check_program(const ExportedProgram& program, const std::string& path,
                   const std::string& model) {
  program::verify(program, join_text(path, ": models/", model, ".json"));
  const auto same_name = [](const std::string& name) { return name; };
  interp::compile(program, {.device = {}, .group_name = same_name}, path);
}

ProgramSummary summarize(const program::Archive& archive) {
  const ExportedProgram program = archive.read_program();
  ProgramSummary out;
  try {
    check_program(program, archive.path());
  } catch (const NotSupported& error) {
    out.not_runnable = error.what();
  }
  out.torch_version = program.torch_version;
  const bool training = std::ranges::find(program.verifiers, "TRAINING") != program.verifiers.end();
  out.form = training ? "as exported" : "after run_decompositions";
  out.file_bytes = std::filesystem::file_size(archive.path());
  add_ports(program, out);
  add_payloads(archive, program.weights, "data/weights/", out);
  add_payloads(archive, program.constants, "data/constants/", out);
  add_ops(program.graph, out);
  return out;
}

}  // namespace tessera::cli
