#include "cli/random_inputs.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/program/index_range.h"
#include "tessera/program/pytree.h"

namespace tessera::cli {
namespace {

using program::ExportedProgram;
using program::InputKind;
using program::Value;
using program::ValueId;

struct Wanted {
  std::string name;
  DType dtype = DType::i64;
  std::vector<int64_t> shape = {};
  int64_t below = 2;                   // for integers
  std::optional<int64_t> number = {};  // of an input that is a number: its value at export
};

/// An input that is a number, and a size of the program: nothing says which others it may be.
Wanted number_at_export(const ExportedProgram& program, std::string name,
                        const program::Argument& argument) {
  const auto& number = argument.as<program::IntOrValue>();
  const auto* id = std::get_if<ValueId>(&number);
  if (id == nullptr) return {.name = std::move(name), .number = std::get<int64_t>(number)};
  const auto& size = program.graph.value(*id).size;
  require(size.has_value() && size->hint().has_value(), "input ", name,
          " is a number whose value at export is not known; give the inputs in a file");
  return {.name = std::move(name), .number = size->hint()};
}

/// The user's inputs, with the sizes and numbers of the export.
std::vector<Wanted> wanted_by(const ExportedProgram& program) {
  std::vector<std::string> names;
  if (!program.in_spec.empty()) {
    names = program::input_names(program::parse_pytree(program.in_spec), program.forward_arg_names);
  }
  std::vector<Wanted> out;
  size_t argument = 0;
  for (const auto& spec : program.signature.inputs) {
    if (spec.kind != InputKind::user_input && spec.kind != InputKind::constant_input) continue;
    const std::string name = argument < names.size() ? names[argument] : join_text("arg", argument);
    ++argument;
    if (spec.kind != InputKind::user_input || !spec.arg) continue;
    const auto* id = std::get_if<ValueId>(&spec.arg->data);
    if (id == nullptr || !program.graph.value(*id).tensor) {
      if (spec.arg->kind == program::ArgKind::sym_int)
        out.push_back(number_at_export(program, name, *spec.arg));
      continue;
    }
    const auto& meta = *program.graph.value(*id).tensor;
    Wanted wanted{.name = name, .dtype = meta.dtype, .shape = {}};
    for (const auto& size : meta.sizes) {
      require(size.hint().has_value(), "input ", name, " is ", meta,
              ": its size at export is not known; give the inputs in a file");
      wanted.shape.push_back(*size.hint());
    }
    if (const auto rows = rows_indexed_by(program.graph, *id))
      wanted.below = std::max<int64_t>(*rows, 1);
    out.push_back(std::move(wanted));
  }
  return out;
}

at::Tensor draw(const Wanted& wanted, at::Generator& generator) {
  if (wanted.number) return at::scalar_tensor(*wanted.number, at::kLong);
  const auto dtype = static_cast<c10::ScalarType>(wanted.dtype);
  if (dtype == at::kBool) return at::rand(wanted.shape, generator) < 0.5;
  if (c10::isIntegralType(dtype, /*includeBool=*/false)) {
    return at::randint(wanted.below, wanted.shape, generator, at::kLong).to(dtype);
  }
  if (c10::isComplexType(dtype)) {
    return at::randn(wanted.shape, generator, at::kComplexDouble).to(dtype);
  }
  return at::randn(wanted.shape, generator, at::kDouble).to(dtype);
}

NamedTensors draw_all(const std::vector<Wanted>& wanted, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  NamedTensors out;
  for (const auto& one : wanted) out.emplace_back(one.name, draw(one, generator));
  return out;
}

}  // namespace

NamedTensors random_inputs(const ExportedProgram& program, uint64_t seed) {
  return draw_all(wanted_by(program), seed);
}

NamedTensors random_inputs(const partition::Manifest& manifest, const ExportedProgram& of_a_rank,
                           uint64_t seed) {
  std::vector<Wanted> wanted = wanted_by(of_a_rank);
  for (auto& one : wanted) {
    if (one.number) continue;
    const auto tensor =
        std::ranges::find(manifest.inputs, one.name, &partition::ManifestTensor::name);
    require(tensor != manifest.inputs.end() && tensor->shape.size() == one.shape.size(), "input ",
            one.name, " is not in the manifest");
    // Of the whole program: a rank may hold a part of the table.
    one.below = std::max<int64_t>(tensor->indexes_below.value_or(2), 1);
    for (size_t d = 0; d < one.shape.size(); ++d) {
      if (tensor->shape[d] != -1) {
        one.shape[d] = tensor->shape[d];
        continue;
      }
      for (size_t axis = 0; axis < tensor->placements.size(); ++axis) {
        const bool sharded = tensor->placements[axis].is_sharded(static_cast<int>(d));
        if (sharded) one.shape[d] *= manifest.mesh.size(static_cast<int>(axis));
      }
    }
  }
  return draw_all(wanted, seed);
}

}  // namespace tessera::cli
