#include <ATen/TensorOperators.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/scatter_add.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "tessera/base/errors.h"
#include "tessera/base/text.h"
#include "tessera/dtensor/dispatch/decide/row_kernel.h"
#include "tessera/dtensor/ops/held_rows.h"
#include "tessera/dtensor/ops/install.h"

/// Look-ups along a sharded dim: a rank returns the rows it holds and zeros for the others, so that
/// the sum over the ranks is the result. For additions by index, each rank adds to the rows it
/// holds. A row is what one index selects, along any dim.
namespace tessera::dtensor {
namespace {

/// A row that does not exist is held by no rank: without this check it would give zeros, not an
/// error.
void check_rows(const KernelCall& call, const at::Tensor& index, const Sharding& table,
                int64_t dim) {
  if (index.is_meta()) return;  // a planning mesh: no values
  const int64_t rows = table.shape()[static_cast<size_t>(dim)];
  const at::Tensor exist = at::logical_and(index.ge(0), index.lt(rows)).all();
  at::_assert_async(exist, join_text(call.name, ": an index is out of range for dim ", dim,
                                     " of size ", rows, " (", table, ")"));
}

/// embedding(weight, indices, ...) with the table sharded by rows.
void masked_embedding(const KernelCall& call) {
  const auto args = call.args();
  const at::Tensor table = args[0].toTensor();
  const at::Tensor index = args[1].toTensor();
  check_rows(call, index, call.operands[0], 0);
  at::Tensor out;
  if (table.size(0) == 0) {
    std::vector<int64_t> shape(index.sizes().begin(), index.sizes().end());
    shape.push_back(table.size(1));
    out = at::zeros(shape, table.options());
  } else {
    const at::Tensor rows = local_rows(index, call.operands[0], 0);
    out = at::embedding(table, rows.clamp_min(0));
    out.masked_fill_(rows.eq(kElsewhere).unsqueeze(-1), 0);
  }
  call.give(std::move(out));
}

/// Its gradient: contributions to rows of other ranks go to an extra row, which is dropped.
void masked_embedding_backward(const KernelCall& call) {
  const auto args = call.args();
  const at::Tensor grad = args[0].toTensor();
  const at::Tensor index = args[1].toTensor();
  const int64_t rows = args[2].toInt();  // already local
  const int64_t padding = args[3].toInt();
  const bool by_frequency = args[4].toBool();
  at::Tensor local = local_rows(index, call.results[0], 0, rows);
  if (padding >= 0) local.masked_fill_(index.eq(padding), rows);
  at::Tensor out = at::embedding_dense_backward(grad, local, rows + 1, -1, by_frequency);
  call.give(out.narrow(0, 0, rows));
}

/// Reshapes a mask over a 1-dim index to broadcast along `dim`.
at::Tensor along(const at::Tensor& mask, int64_t dim, int64_t ndim) {
  std::vector<int64_t> shape(static_cast<size_t>(ndim), 1);
  shape[static_cast<size_t>(dim)] = mask.size(0);
  return mask.view(shape);
}

/// The common leading arguments of gather, index_select, scatter_add and index_add.
struct ByIndex {
  at::Tensor self;
  int64_t dim;
  at::Tensor index;
  at::Tensor rows;  ///< rows of `self` on this rank

  explicit ByIndex(const KernelCall& call) {
    const auto args = call.args();
    self = args[0].toTensor();
    dim = args[1].toInt() < 0 ? args[1].toInt() + self.dim() : args[1].toInt();
    index = args[2].toTensor();
    check_rows(call, index, call.operands[0], dim);
    rows = local_rows(index, call.operands[0], dim);
  }

  at::Tensor elsewhere() const { return rows.eq(kElsewhere); }
  /// An empty part has no row that could stand in for rows of other ranks.
  bool nothing_here() const { return self.size(dim) == 0; }
};

at::Tensor masked_gather(const ByIndex& at) {
  if (at.nothing_here()) return at::zeros(at.index.sizes(), at.self.options());
  return at::gather(at.self, at.dim, at.rows.clamp_min(0)).masked_fill_(at.elsewhere(), 0);
}

at::Tensor masked_index_select(const ByIndex& at) {
  if (at.nothing_here()) {
    std::vector<int64_t> shape = at.self.sizes().vec();
    shape[static_cast<size_t>(at.dim)] = at.index.size(0);
    return at::zeros(shape, at.self.options());
  }
  const at::Tensor elsewhere = along(at.elsewhere(), at.dim, at.self.dim());
  return at::index_select(at.self, at.dim, at.rows.clamp_min(0)).masked_fill_(elsewhere, 0);
}

/// `into`: the tensor itself, or a copy of it. Values for rows of other ranks add zero.
at::Tensor masked_scatter_add(const ByIndex& at, const at::Tensor& into, at::Tensor source) {
  if (at.nothing_here()) return into;
  for (int64_t d = 0; d < source.dim(); ++d) source = source.narrow(d, 0, at.index.size(d));
  return into.scatter_add_(at.dim, at.rows.clamp_min(0), source.masked_fill(at.elsewhere(), 0));
}

bool is_finite(const at::Scalar& number) {
  if (number.isComplex()) {
    const auto value = number.toComplexDouble();
    return std::isfinite(value.real()) && std::isfinite(value.imag());
  }
  return !number.isFloatingPoint() || std::isfinite(number.toDouble());
}

at::Tensor masked_index_add(const ByIndex& at, const at::Tensor& into, const at::Tensor& source,
                            const at::Scalar& alpha) {
  if (at.nothing_here()) return into;
  const at::Tensor elsewhere = along(at.elsewhere(), at.dim, at.self.dim());
  if (!is_finite(alpha)) {  // times 0 it is NaN, so it multiplies before rows are masked
    const at::Tensor scaled = source.mul(alpha).masked_fill_(elsewhere, 0);
    return into.index_add_(at.dim, at.rows.clamp_min(0), scaled);
  }
  return into.index_add_(at.dim, at.rows.clamp_min(0), source.masked_fill(elsewhere, 0), alpha);
}

void masked_by_index(const KernelCall& call) {
  constexpr size_t kSource = 3, kAlpha = 4;
  const ByIndex at(call);
  const auto args = call.args();
  const std::string_view name = call.name;
  const bool in_place = name.ends_with('_');
  const auto into = [&] {  // the results of these ops are row-major
    return in_place ? at.self : at.self.clone(at::MemoryFormat::Contiguous);
  };
  at::Tensor out;
  if (name.starts_with("aten::gather")) {
    out = masked_gather(at);
  } else if (name.starts_with("aten::index_select")) {
    out = masked_index_select(at);
  } else if (name.starts_with("aten::scatter_add")) {
    out = masked_scatter_add(at, into(), args[kSource].toTensor());
  } else {
    ensure(name.starts_with("aten::index_add"), "no masked form of this op");
    out = masked_index_add(at, into(), args[kSource].toTensor(), args[kAlpha].toScalar());
  }
  call.give(std::move(out));
}

/// The op may also be an out= form.
void mask(const KernelCall& call) {
  if (call.name.starts_with("aten::embedding_dense_backward"))
    return masked_embedding_backward(call);
  if (call.name.starts_with("aten::embedding")) return masked_embedding(call);
  masked_by_index(call);
}

}  // namespace

void install_masked_rows() { add_row_kernel("mask", mask, rules::KernelComm::none); }

}  // namespace tessera::dtensor
