#include "tessera/parallel/overlapped_linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/linear_backward.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <deque>
#include <functional>

#include "tessera/dtensor/autograd.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/held_value.h"
#include "tessera/dtensor/tensor/kept_copies.h"
#include "tessera/dtensor/tensor/lazy.h"
#include "tessera/observe/call_site.h"

namespace tessera::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::tensor_list;

/// The local matrix that a weight is computed with. Of fully_shard it is gathered meanwhile.
class LocalMatrix {
 public:
  explicit LocalMatrix(const at::Tensor& weight) : lazy_(dtensor::lazy_local(weight)) {
    const c10::AutoGradMode no_grad(false);
    value_ = lazy_ != nullptr ? lazy_->unsharded() : weight.detach();
  }
  ~LocalMatrix() {
    value_.reset();
    if (lazy_ != nullptr) lazy_->release();
  }
  LocalMatrix(const LocalMatrix&) = delete;
  LocalMatrix& operator=(const LocalMatrix&) = delete;

  bool is_on(const DeviceMesh& mesh) const {
    return is_dtensor(value_) && device_mesh(value_) == mesh;
  }
  const Sharding& sharding() const { return tessera::sharding(value_); }
  at::Tensor local() const { return to_local(value_); }

 private:
  dtensor::LazyLocal* lazy_;
  at::Tensor value_;
};

/// A dim between the first and the last, which is neither split into pieces nor multiplied.
bool is_inner(const Placement& placement, int64_t ndim) {
  return placement == Shard(placement.is_sharded() ? placement.dim() : 0) && placement.dim() > 0 &&
         placement.dim() < ndim - 1;
}

/// Whether the other axes neither shard `dim` nor the last one, and are not Partial.
bool others_keep_apart(const Sharding& x, int axis, int dim) {
  const int last = static_cast<int>(x.shape().size()) - 1;
  for (int other = 0; other < x.mesh().ndim(); ++other) {
    const Placement& placement = x.placement(other);
    if (other == axis) continue;
    if (placement.is_partial() || placement.is_sharded(dim) || placement.is_sharded(last)) {
      return false;
    }
  }
  return true;
}

bool is_replicated_beside(const Sharding& weight, int axis) {
  for (int other = 0; other < weight.mesh().ndim(); ++other) {
    if (other != axis && !weight.placement(other).is_replicate()) return false;
  }
  return true;
}

/// One axis of a mesh, and the dim of local tensors that it shards, of `size` over all ranks.
struct Line {
  DeviceMesh mesh;
  int dim;
  int64_t size;

  PendingTensor start(const at::Tensor& local, Placement from, Placement to) const {
    std::vector<int64_t> shape = local.sizes().vec();
    shape[static_cast<size_t>(dim)] = size;
    const at::Tensor piece =
        from_local(local, mesh, {std::move(from)}, {.shape = std::move(shape)});
    return redistribute_async(piece, {std::move(to)});
  }
};

Line line_of(const Sharding& sharding, int axis, int dim) {
  return {sharding.mesh()[sharding.mesh().axis_name(axis)], dim,
          sharding.shape()[static_cast<size_t>(dim)]};
}

/// Calls `visit(begin, rows)` for each piece of the first dim.
void for_each_piece(int64_t size, int64_t pieces,
                    const std::function<void(int64_t, int64_t)>& visit) {
  const int64_t rows = (size + pieces - 1) / pieces;
  for (int64_t begin = 0; begin < size; begin += rows) visit(begin, std::min(rows, size - begin));
}

struct Gathered {
  at::Tensor whole = {};
  at::Tensor product = {};
};

/// `local` gathered along the line, and its product with the matrix; both local.
Gathered gather_and_multiply(const at::Tensor& local, const Line& line, const at::Tensor& matrix,
                             int64_t pieces) {
  const c10::AutoGradMode no_grad(false);
  std::deque<PendingTensor> pending;  // the next piece is in flight while one is multiplied
  std::vector<std::pair<int64_t, int64_t>> batches;
  for_each_piece(local.size(0), pieces,
                 [&](int64_t begin, int64_t rows) { batches.emplace_back(begin, rows); });
  const auto start = [&](size_t piece) {
    if (piece >= batches.size()) return;
    const auto [begin, rows] = batches[piece];
    pending.push_back(line.start(local.narrow(0, begin, rows), Shard(line.dim), Replicate()));
  };
  std::vector<int64_t> shape = local.sizes().vec();
  shape[static_cast<size_t>(line.dim)] = line.size;
  Gathered out{.whole = at::empty(shape, local.options())};
  shape.back() = matrix.size(0);
  out.product = at::empty(shape, local.options());
  start(0);
  for (size_t piece = 0; piece < batches.size(); ++piece) {
    start(piece + 1);
    const auto [begin, rows] = batches[piece];
    const at::Tensor gathered = to_local(pending.front().wait());
    pending.pop_front();
    out.whole.narrow(0, begin, rows).copy_(gathered);
    out.product.narrow(0, begin, rows).copy_(at::linear(gathered, matrix));
  }
  return out;
}

at::Tensor multiply_and_scatter(const at::Tensor& local, const Line& line, const at::Tensor& matrix,
                                int64_t pieces) {
  const c10::AutoGradMode no_grad(false);
  std::vector<PendingTensor> pending;
  for_each_piece(local.size(0), pieces, [&](int64_t begin, int64_t rows) {
    const at::Tensor addend = at::linear(local.narrow(0, begin, rows), matrix);
    pending.push_back(line.start(addend, Partial(), Shard(line.dim)));
  });
  std::vector<at::Tensor> parts;
  for (PendingTensor& one : pending) parts.push_back(to_local(one.wait()));
  return at::cat(parts, 0);
}

/// Not a tensor argument of the function: it is made there, not used.
struct Computed {
  at::Tensor value;
};

/// linear(x, weight) whose result is known.
struct KnownLinear : Function<KnownLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const Computed& result) {
    ctx->save_for_backward({x, weight});
    return result.value;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    if (!grads[0].defined()) return {{}, {}, {}};
    auto [d_x, d_weight, d_bias] = at::linear_backward(
        saved[0], grads[0], saved[1], {ctx->needs_input_grad(0), ctx->needs_input_grad(1), false});
    return {d_x, d_weight, {}};
  }
};

struct ScatteredLinear : Function<ScatteredLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const Computed& result, int64_t axis, int64_t pieces) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["axis"] = axis;
    ctx->saved_data["pieces"] = pieces;
    dtensor::hold_value(ctx, "result", sharding(result.value));
    return result.value;
  }

  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    if (!grads[0].defined()) return {{}, {}, {}, {}, {}};
    const int axis = static_cast<int>(ctx->saved_data["axis"].toInt());
    const Sharding as = dtensor::held_value<Sharding>(ctx, "result");
    const Sharding whole = as.with(axis, Replicate());
    const bool wants_x = ctx->needs_input_grad(0);
    const bool wants_weight = ctx->needs_input_grad(1);
    if (c10::GradMode::is_enabled() || !wants_x) {
      auto [d_x, d_weight, d_bias] = at::linear_backward(saved[0], redistribute(grads[0], whole),
                                                         saved[1], {wants_x, wants_weight, false});
      return {d_x, d_weight, {}, {}, {}};
    }
    const at::Tensor grad = redistribute(grads[0], as);
    const int64_t pieces = ctx->saved_data["pieces"].toInt();
    const Gathered made = [&] {
      const LocalMatrix matrix(saved[1]);
      return gather_and_multiply(to_local(grad), line_of(as, axis, as.placement(axis).dim()),
                                 matrix.local().t(), pieces);
    }();
    const at::Tensor d_x = dtensor::wrap(made.product, sharding(saved[0]));
    at::Tensor d_weight;
    if (wants_weight) {
      d_weight = std::get<1>(at::linear_backward(saved[0], dtensor::wrap(made.whole, whole),
                                                 saved[1], {false, true, false}));
    }
    return {d_x, d_weight, {}, {}, {}};
  }
};

/// The sharding of linear's result.
Sharding with_outputs(const Sharding& x, int axis, Placement placement, int64_t outputs) {
  std::vector<int64_t> shape(x.shape().begin(), x.shape().end());
  shape.back() = outputs;
  std::vector<Placement> placements(x.placements().begin(), x.placements().end());
  placements[static_cast<size_t>(axis)] = std::move(placement);
  return Sharding(x.mesh(), std::move(placements), std::move(shape), {.dtype = x.dtype()});
}

}  // namespace

std::optional<at::Tensor> gather_linear(const at::Tensor& x, const at::Tensor& weight, int axis,
                                        int64_t pieces) {
  const Sharding has = sharding(x);
  const Placement& placement = has.placement(axis);
  if (!is_inner(placement, x.dim()) || !others_keep_apart(has, axis, placement.dim()) ||
      to_local(x.detach()).size(0) < 2) {
    return std::nullopt;
  }
  const Sharding whole = has.with(axis, Replicate());
  if (dtensor::find_redistributed(x, whole).defined()) return std::nullopt;
  at::Tensor product;
  at::Tensor gathered;
  {
    const LocalMatrix matrix(weight);
    if (!matrix.is_on(has.mesh()) || !is_replicated_beside(matrix.sharding(), axis)) {
      return std::nullopt;
    }
    const Placement& outputs = matrix.sharding().placement(axis);
    if (!outputs.is_replicate() && !outputs.is_sharded(0)) return std::nullopt;
    const int last = static_cast<int>(x.dim()) - 1;
    const Sharding as =
        with_outputs(has, axis, outputs.is_replicate() ? outputs : outputs.on_dim(last),
                     matrix.sharding().shape()[0]);
    gathered = dtensor::moved_differentiable(
        x,
        [&] {
          Gathered made = gather_and_multiply(
              to_local(x.detach()), line_of(has, axis, placement.dim()), matrix.local(), pieces);
          product = dtensor::wrap(made.product, as);
          return dtensor::wrap(made.whole, whole);
        },
        std::nullopt);
  }
  dtensor::keep_redistributed(x, whole, gathered);
  return KnownLinear::apply(gathered, weight, Computed{product});
}

std::optional<at::Tensor> linear_scatter(const at::Tensor& x, const at::Tensor& weight, int axis,
                                         const Placement& to, int64_t pieces) {
  const Sharding has = sharding(x);
  const int last = static_cast<int>(x.dim()) - 1;
  const bool applies = has.placement(axis) == Shard(last) && is_inner(to, x.dim()) &&
                       others_keep_apart(has, axis, to.dim()) && to_local(x.detach()).size(0) >= 2;
  if (!applies) return std::nullopt;
  at::Tensor result;
  {
    const LocalMatrix matrix(weight);
    if (!matrix.is_on(has.mesh()) || !is_replicated_beside(matrix.sharding(), axis) ||
        matrix.sharding().placement(axis) != Shard(1)) {
      return std::nullopt;
    }
    const Sharding as = with_outputs(has, axis, to, matrix.sharding().shape()[0]);
    const at::Tensor local = multiply_and_scatter(to_local(x.detach()), line_of(as, axis, to.dim()),
                                                  matrix.local(), pieces);
    result = dtensor::wrap(local, as);
  }
  return ScatteredLinear::apply(x, weight, Computed{result}, static_cast<int64_t>(axis), pieces);
}

}  // namespace tessera::parallel
