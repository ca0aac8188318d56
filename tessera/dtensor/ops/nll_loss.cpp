#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "tessera/base/text.h"
#include "tessera/dtensor/dispatch/decide/row_kernel.h"
#include "tessera/dtensor/ops/class_sums.h"
#include "tessera/dtensor/ops/held_rows.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/ops/reductions.h"

/// nll_loss and nll_loss2d of scores [n, c] or [n, c, h, w] whose rows or classes are sharded, over
/// any axes. Each rank adds up the rows and classes it holds; the sums are reduced in one message.
/// A mean divides by the weights of all targets, which no rank has alone.
namespace tessera::dtensor {
namespace {

constexpr int kClassDim = 1;

at::ScalarType wide_type(const at::Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type()) ? at::kFloat : tensor.scalar_type();
}

/// The rows of this rank's scores: their classes and weights.
struct Targets {
  at::Tensor counts;   ///< rows that are not ignored
  at::Tensor is_here;  ///< rows whose class this rank holds
  at::Tensor index;    ///< of the class among this rank's; 0 elsewhere
  at::Tensor weight;   ///< of the class; 0 for ignored rows

  Targets(const KernelCall& call, const Sharding& scores, at::ScalarType dtype) {
    const at::Tensor target = call.tensor("target");
    counts = target.ne(call.arg("ignore_index").toInt());
    const at::Tensor classes = at::where(counts, target, 0);
    check_classes(call, classes, scores);
    const at::Tensor local = local_rows(classes, scores, kClassDim);
    is_here = local.ne(kElsewhere) & counts;
    index = local.clamp_min(0);
    weight = counts.to(dtype);
    if (const at::Tensor given = call.tensor("weight"); given.defined()) {
      const at::Tensor each = given.to(dtype).index_select(0, classes.flatten());
      weight = weight * each.view(classes.sizes());
    }
  }

  /// The values of rows whose class is here, 0 for others.
  at::Tensor here(const at::Tensor& values) const {
    return at::where(is_here, values, at::zeros({}, values.options()));
  }
  /// The values of rows that are not ignored, 0 for others: what here() adds up to over all ranks.
  at::Tensor anywhere(const at::Tensor& values) const {
    return at::where(counts, values, at::zeros({}, values.options()));
  }

 private:
  /// A class that does not exist is held by no rank: without this check it would count as 0.
  static void check_classes(const KernelCall& call, const at::Tensor& classes,
                            const Sharding& scores) {
    if (classes.is_meta()) return;  // a planning mesh: no values
    const int64_t count = scores.shape()[kClassDim];
    at::_assert_async(
        (classes.ge(0) & classes.lt(count)).all(),
        join_text(call.name, ": a target is out of range for ", count, " classes (", scores, ")"));
  }
};

/// Whether this rank is the first of those that hold the same rows: a row's weight counts once.
bool counts_weights(const Sharding& scores) {
  const auto coordinate = scores.mesh().my_coordinate();
  return std::ranges::all_of(scores.axes_of_dim(kClassDim), [&](int axis) {
    return (*coordinate)[static_cast<size_t>(axis)] == 0;
  });
}

/// Sharded rows, whole classes: the op itself adds up this rank's rows.
void nll_of_rows(const KernelCall& call) {
  const auto& arguments = call.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "reduction") call.args()[i] = int64_t{at::Reduction::Sum};
  }
  call.op.callBoxed(&call.stack);
  const at::Tensor weight = torch::jit::pop(call.stack).toTensor();
  const at::Tensor loss = torch::jit::pop(call.stack).toTensor();
  const at::Tensor both = reduce_over_sharded(call, at::stack({loss, weight}), ReduceOp::sum);
  torch::jit::push(call.stack, both[0] / both[1], both[1].clone());
}

/// nll_loss_forward(self, target, weight?, reduction, ignore_index) -> (loss, total_weight)
void nll(const KernelCall& call) {
  const Sharding& scores = call.operands[0];
  if (scores.axes_of_dim(kClassDim).empty()) return nll_of_rows(call);
  const at::Tensor local = call.tensor("self");
  const at::ScalarType dtype = wide_type(local);
  const Targets targets(call, scores, dtype);
  const at::Tensor picked = local.size(kClassDim) == 0
                                ? at::zeros(targets.index.sizes(), local.options().dtype(dtype))
                                : local.gather(kClassDim, targets.index.unsqueeze(kClassDim))
                                      .squeeze(kClassDim)
                                      .to(dtype);
  const at::Tensor rows = -targets.here(picked * targets.weight);
  const auto reduction = call.arg("reduction").toInt();
  const at::ScalarType made = local.scalar_type();
  if (reduction == at::Reduction::None) {
    return call.give(reduce_over_sharded(call, rows, ReduceOp::sum).to(made),
                     at::zeros({}, local.options()));
  }
  // The total weight of a sum stays this rank's rows', like the sum: only a mean needs all rows.
  const std::vector<int> axes = reduced_axes(call);
  const at::Tensor weight = targets.weight.sum();
  if (reduction == at::Reduction::Sum) {
    const at::Tensor sum = reduce_over_axes(rows.sum(), scores.mesh(), axes, ReduceOp::sum);
    return call.give(sum.to(made), weight.to(made));
  }
  const at::Tensor once = counts_weights(scores) ? weight : at::zeros_like(weight);
  const at::Tensor both =
      reduce_over_axes(at::stack({rows.sum(), once}), scores.mesh(), axes, ReduceOp::sum);
  call.give((both[0] / both[1]).to(made), both[1].clone().to(made));
}

/// nll_loss_backward(grad_output, self, target, weight?, reduction, ignore_index, total_weight):
/// each rank has the gradients of its classes.
void nll_backward(const KernelCall& call) {
  const at::Tensor local = call.tensor("self");
  const at::ScalarType dtype = wide_type(local);
  const Targets targets(call, call.operands[1], dtype);
  at::Tensor rows = -call.tensor("grad_output").to(dtype) * targets.weight;
  if (call.arg("reduction").toInt() == at::Reduction::Mean) {
    rows = rows / call.tensor("total_weight").to(dtype);
  }
  rows = rows.to(local.scalar_type());
  const at::Tensor out = at::zeros(local.sizes(), local.options());
  if (local.size(kClassDim) > 0) {
    out.scatter_(kClassDim, targets.index.unsqueeze(kClassDim),
                 targets.here(rows).unsqueeze(kClassDim));
  }
  keep_class_sums(out, call.results[0], kClassDim, targets.anywhere(rows).unsqueeze(kClassDim));
  call.give(out);
}

}  // namespace

void install_nll_loss() {
  add_row_kernel("nll", nll);
  add_row_kernel("nll_backward", nll_backward, rules::KernelComm::none);
}

}  // namespace tessera::dtensor
