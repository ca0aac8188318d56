#include "tessera/partition/search/compute_model.h"

#include <algorithm>

#include "tessera/partition/graph/aliases.h"
#include "tessera/partition/graph/einsum_rule.h"

namespace tessera::partition {
namespace {

double numel(const Sharding& s) { return static_cast<double>(s.numel()); }

/// The size of a dim of an operand; 1 if there is none: a program's calls need not fit their ops.
double size(std::span<const Sharding> operands, size_t operand, int dim) {
  if (operand >= operands.size() || !operands[operand].defined()) return 1;
  const Sharding& s = operands[operand];
  const int at = dim < 0 ? dim + s.ndim() : dim;
  return at < 0 || at >= s.ndim() ? 1 : static_cast<double>(s.shape()[static_cast<size_t>(at)]);
}

std::string_view base_name(std::string_view op) {
  const size_t begin = op.rfind(':') + 1;
  return op.substr(begin, op.find('.', begin) - begin);
}

}  // namespace

ComputeModel ComputeModel::of_device(const std::string& device) {
  if (device == "cpu") return {5e10, 1e10};
  return {};
}

double local_bytes(const Sharding& sharding) {
  double elements = static_cast<double>(dtype_bytes(sharding.dtype()));
  for (int d = 0; d < sharding.ndim(); ++d) {
    int64_t n = sharding.shape()[static_cast<size_t>(d)];
    for (const int axis : sharding.axes_of_dim(d)) {
      const int ranks = sharding.mesh().size(axis);
      n = (n + ranks - 1) / ranks;
    }
    elements *= static_cast<double>(n);
  }
  return elements;
}

double flops_of(const NodeCall& call, std::span<const Sharding> operands,
                std::span<const Sharding> results) {
  if (results.empty() || !results[0].defined()) return 0;
  const std::string_view name = base_name(call.op());
  const double out = numel(results[0]);
  if (name == "linear" || name == "mm" || name == "bmm" || name == "matmul")
    return 2 * out * size(operands, 0, -1);
  if (name == "addmm" || name == "baddbmm") return 2 * out * size(operands, 1, -1);
  if (name == "einsum") return einsum_flops(call.call());
  if (name.starts_with("conv") && operands.size() > 1 && operands[1].defined())
    return 2 * out * numel(operands[1]) / std::max(1.0, size(operands, 1, 0));
  if (name.find("attention") != std::string_view::npos && operands.size() > 1)
    return 4 * out * size(operands, 1, -2);
  return out;
}

double ComputeModel::seconds(const NodeCall& call, std::span<const Sharding> operands,
                             std::span<const Sharding> results, double share) const {
  if (is_view(call.op()) && call.op() != "aten::contiguous") return 0;
  double bytes = 0;
  for (const auto& s : results) bytes += s.defined() ? local_bytes(s) : 0;
  const bool is_look_up = call.op() == "aten::embedding";  // reads the rows that it needs
  for (size_t o = is_look_up ? 1 : 0; o < operands.size(); ++o) {
    if (operands[o].defined()) bytes += local_bytes(operands[o]);
  }
  return std::max(flops_of(call, operands, results) * share / flops_per_s, bytes / bytes_per_s);
}

}  // namespace tessera::partition
