#include <ATen/TensorOperators.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/sum.h>

#include "tessera/dtensor/dispatch/decide/row_kernel.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/ops/sharded_dim_rows.h"
#include "tessera/dtensor/ops/side_by_side.h"
#include "tessera/exec/redistribute.h"
#include "tessera/sharding/local_shape.h"

/// cumsum along a sharded dim: each rank sums its own part and adds the totals of the preceding
/// parts. One number per rank and row is communicated; the result has the input's sharding.
namespace tessera::dtensor {
namespace {

/// Every rank must have one contiguous range of the dim.
std::vector<rules::Row> cumsum_rows(const rules::OpCall& call, int axis) {
  const Sharding self = call.operands()[0];
  const int dim = self.ndim() == 0 ? -1 : named_dim(call, self);
  if (dim < 0 || self.numel() == 0) return {};
  const DType made = call.results.empty() ? self.dtype() : call.results[0].dtype;
  std::vector<rules::Row> out;
  for (rules::Row& row : rows_sharding(self, axis, dim)) {
    if (row.operands[0].kind() == Placement::Kind::strided) continue;
    row.results = row.operands;
    row.comm = rules::KernelComm::combine;
    row.sent = gathered_bytes(self, axis, elements_beside(self, axis, dim) * dtype_bytes(made));
    out.push_back(std::move(row));
  }
  return out;
}

/// The sum of the parts before this rank's.
at::Tensor sum_before(const at::Tensor& of_part, const Sharding& from, int dim) {
  const auto [apart, together] = side_by_side(from, dim, 1);
  const auto dtype = static_cast<DType>(of_part.scalar_type());
  const at::Tensor all = exec::redistribute(of_part.contiguous(), apart.with_dtype(dtype),
                                            together.with_dtype(dtype), {.may_alias = true});
  const auto mine = held_intervals(apart, dim, *from.mesh().my_coordinate());
  return all.narrow(dim, 0, mine.front().begin).sum(dim, /*keepdim=*/true, of_part.scalar_type());
}

/// cumsum(self, dim, dtype?)
void cumsum(const KernelCall& call) {
  const Sharding& from = call.operands[0];
  const int64_t given = call.arg("dim").toInt();
  const auto dim = static_cast<int>(given < 0 ? given + from.ndim() : given);
  const auto made = static_cast<at::ScalarType>(call.results[0].dtype());
  // float16 and bfloat16 are accumulated in float32.
  const at::ScalarType wide = at::isReducedFloatingType(made) ? at::kFloat : made;
  const at::Tensor local = call.args()[0].toTensor().to(made).to(wide);
  const at::Tensor before = sum_before(local.sum(dim, /*keepdim=*/true, wide), from, dim);
  call.give(at::cumsum(local, dim).add_(before).to(made));
}

}  // namespace

void install_cumsum() { add_row_kernel("cumsum", cumsum, rules::KernelComm::combine, cumsum_rows); }

}  // namespace tessera::dtensor
