// log_softmax, nll_loss and logsumexp over a dim that is sharded: each rank computes with its
// classes, and only one number a row is reduced. The logits are neither gathered nor moved.
#include <ATen/ops/amax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/register.h"
#include "tessera/dtensor/layout.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"

namespace tessera::dtensor {
namespace {

/// The axes that shard a dim. Empty also if the tensor is one that these leave to the
/// common path: plain, lazy or Partial.
std::vector<int> axes_over(const at::Tensor& tensor, int64_t dim) {
  const ShardedMeta* meta = sharded_meta(tensor);
  if (meta == nullptr || meta->lazy() != nullptr || meta->sharding().has_partial() ||
      !meta->sharding().mesh().contains_me() || tensor.dim() == 0) {
    return {};
  }
  const auto axes = meta->sharding().axes_of_dim(static_cast<int>(dim));
  std::vector<int> out;
  for (const int axis : axes) {
    if (meta->sharding().mesh().size(axis) > 1) out.push_back(axis);
  }
  return out;
}

int64_t from_start(int64_t dim, const at::Tensor& tensor) {
  return dim < 0 ? dim + tensor.dim() : dim;
}

/// Reduces a local tensor over mesh axes.
at::Tensor reduced(const OpEntry& entry, const at::Tensor& local, const DeviceMesh& mesh,
                   std::span<const int> axes, ReduceOp op) {
  std::vector<Placement> placements(static_cast<size_t>(mesh.ndim()));
  for (const int axis : axes) placements[static_cast<size_t>(axis)] = Partial(op);
  const Sharding from(mesh, std::move(placements), local.sizes().vec(),
                      {.dtype = static_cast<DType>(local.scalar_type())});
  const comm::CallSite site({.op = entry.name, .implicit = true});
  return exec::redistribute(local.contiguous(), from, from.replicated());
}

/// The largest value and the sum of exponentials of each row, over all ranks.
struct RowSums {
  at::Tensor largest;
  at::Tensor sum;  ///< of exp(x - largest)
};

RowSums row_sums(const OpEntry& entry, const at::Tensor& local, const DeviceMesh& mesh,
                 std::span<const int> axes, at::IntArrayRef dims) {
  bool empty = false;
  std::vector<int64_t> rows = local.sizes().vec();
  for (const int64_t dim : dims) {
    empty = empty || local.size(dim) == 0;
    rows[static_cast<size_t>(dim)] = 1;
  }
  const at::Tensor own =
      empty ? at::full(rows, -std::numeric_limits<double>::infinity(), local.options())
            : at::amax(local, dims, /*keepdim=*/true);
  at::Tensor largest = reduced(entry, own, mesh, axes, ReduceOp::max);
  // A row of -inf: its sum is 0, not the NaN of -inf - -inf.
  const at::Tensor shift = at::where(largest.isinf(), at::zeros_like(largest), largest);
  at::Tensor sum =
      reduced(entry, (local - shift).exp().sum(dims, /*keepdim=*/true), mesh, axes, ReduceOp::sum);
  return {shift, std::move(sum)};
}

void finish(Stack& stack, const OpEntry& entry, std::vector<at::Tensor> results) {
  torch::jit::drop(stack, entry.args.size());
  for (at::Tensor& result : results) stack.emplace_back(std::move(result));
}

at::Tensor wrap_like(const at::Tensor& local, const Sharding& like) {
  const Sharding as = like.with_shape({like.shape().begin(), like.shape().end()})
                          .with_dtype(static_cast<DType>(local.scalar_type()));
  return wrap(local.contiguous(), as);
}

bool log_softmax(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor self = args[0].toTensor();
  const int64_t dim = from_start(args[1].toInt(), self);
  const std::vector<int> axes = axes_over(self, dim);
  if (axes.empty()) return false;
  const Sharding sharding = sharded_meta(self)->sharding();
  at::Tensor local = sharded_meta(self)->local();
  if (args[2].toBool()) local = local.to(at::kFloat);
  const RowSums rows = row_sums(entry, local, sharding.mesh(), axes, {dim});
  finish(stack, entry, {wrap_like(local - rows.largest - rows.sum.log(), sharding)});
  return true;
}

/// d_input = grad - softmax * sum(grad): the sum over the classes of all ranks.
bool log_softmax_backward(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor grad = args[0].toTensor();
  const at::Tensor output = args[1].toTensor();
  const int64_t dim = from_start(args[2].toInt(), output);
  const std::vector<int> axes = axes_over(output, dim);
  const ShardedMeta* given = sharded_meta(grad);
  if (axes.empty() || given == nullptr || given->lazy() != nullptr) return false;
  const Sharding sharding = sharded_meta(output)->sharding();
  if (given->sharding().mesh() != sharding.mesh()) return false;
  const at::Tensor own_output = sharded_meta(output)->local();
  at::Tensor own_grad;
  {
    const comm::CallSite site({.op = entry.name, .implicit = true});
    own_grad =
        exec::redistribute(given->local(), given->sharding(),
                           sharding.with_dtype(given->sharding().dtype()), {.may_alias = true});
  }
  const at::Tensor sum =
      reduced(entry, own_grad.sum({dim}, /*keepdim=*/true), sharding.mesh(), axes, ReduceOp::sum);
  const auto dtype = static_cast<at::ScalarType>(args[3].toInt());
  finish(stack, entry, {wrap_like((own_grad - own_output.exp() * sum).to(dtype), sharding)});
  return true;
}

bool logsumexp(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor self = args[0].toTensor();
  const bool keep = args[2].toBool();
  std::vector<int64_t> dims = args[1].toIntVector();
  std::vector<int> axes;
  for (int64_t& dim : dims) {
    dim = from_start(dim, self);
    const auto over = axes_over(self, dim);
    axes.insert(axes.end(), over.begin(), over.end());
  }
  if (axes.empty() || !self.is_floating_point()) return false;
  const Sharding sharding = sharded_meta(self)->sharding();
  const RowSums rows = row_sums(entry, sharded_meta(self)->local(), sharding.mesh(), axes, dims);
  const at::Tensor whole_dims = rows.largest + rows.sum.log();
  // The result's sharding: with dims of size 1, then without them.
  std::vector<Placement> placements(sharding.placements().begin(), sharding.placements().end());
  std::vector<int64_t> shape(sharding.shape().begin(), sharding.shape().end());
  for (auto& placement : placements) {
    const bool summed =
        placement.is_sharded() && std::ranges::find(dims, placement.dim()) != dims.end();
    if (summed) placement = Replicate();
  }
  for (const int64_t dim : dims) shape[static_cast<size_t>(dim)] = 1;
  at::Tensor out = wrap(whole_dims.contiguous(),
                        Sharding(sharding.mesh(), std::move(placements), std::move(shape),
                                 {.dtype = sharding.dtype(), .order = sharding.order()}));
  if (!keep) {
    std::ranges::sort(dims, std::greater<>());
    for (const int64_t dim : dims) out = out.squeeze(dim);
  }
  finish(stack, entry, {out});
  return true;
}

/// A loss over classes that are sharded in one piece a rank.
struct ClassLoss {
  Sharding sharding;        ///< of the scores, [rows, classes]
  std::vector<int> axes;    ///< over the classes
  std::vector<int> others;  ///< over the rows
  at::Tensor target;        ///< this rank's rows
  at::Tensor is_here;       ///< rows whose class is among this rank's
  at::Tensor index;         ///< of the class among them; 0 elsewhere
  at::Tensor weight;        ///< of each row's class; 0 for ignored rows

  at::Tensor rows(const at::Tensor& picked) const { return at::where(is_here, picked, 0); }
};

/// The target as the scores' rows are: not communicated, so it must be there.
std::optional<at::Tensor> local_target(const at::Tensor& target, const Sharding& scores) {
  const ShardedMeta* meta = sharded_meta(target);
  if (meta == nullptr || meta->sharding().mesh() != scores.mesh()) return std::nullopt;
  for (int axis = 0; axis < scores.mesh().ndim(); ++axis) {
    const Placement& has = meta->sharding().placement(axis);
    const Placement& row = scores.placement(axis);
    if (row.is_sharded(0) ? has != row : !has.is_replicate()) return std::nullopt;
  }
  return meta->local();
}

std::optional<ClassLoss> class_loss(const at::Tensor& scores, const at::Tensor& target,
                                    const c10::IValue& weight, int64_t ignore) {
  if (scores.dim() != 2 || !sharded_meta(scores)) return std::nullopt;
  ClassLoss out;
  out.axes = axes_over(scores, 1);
  if (out.axes.size() != 1) return std::nullopt;
  out.sharding = sharded_meta(scores)->sharding();
  if (!out.sharding.placement(out.axes[0]).is_plain_shard()) return std::nullopt;
  const auto rows = local_target(target, out.sharding);
  if (!rows) return std::nullopt;
  for (const int axis : out.sharding.axes_of_dim(0)) out.others.push_back(axis);
  out.target = *rows;
  const int64_t first = out.sharding.local_offset()[1];
  const int64_t count = out.sharding.local_shape()[1];
  const at::Tensor known = out.target != ignore;
  out.is_here = known & (out.target >= first) & (out.target < first + count);
  out.index = at::where(out.is_here, out.target - first, 0);
  out.weight = known.to(scores.scalar_type());
  if (weight.isTensor() && weight.toTensor().defined()) {
    const at::Tensor given = weight.toTensor();
    const ShardedMeta* meta = sharded_meta(given);
    if (meta != nullptr && !meta->sharding().is_replicated()) return std::nullopt;
    const at::Tensor all = meta != nullptr ? meta->local() : given;
    out.weight = out.weight * all.index_select(0, at::where(known, out.target, 0));
  }
  return out;
}

bool nll_loss(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor self = args[0].toTensor();
  const auto loss = class_loss(self, args[1].toTensor(), args[2], args[4].toInt());
  if (!loss) return false;
  const int64_t reduction = args[3].toInt();
  const DeviceMesh& mesh = loss->sharding.mesh();
  const at::Tensor local = sharded_meta(self)->local();
  const at::Tensor picked = local.size(1) == 0
                                ? at::zeros_like(loss->weight)
                                : local.gather(1, loss->index.unsqueeze(1)).squeeze(1);
  const at::Tensor rows = -loss->rows(picked) * loss->weight;
  std::vector<Placement> scalar(static_cast<size_t>(mesh.ndim()));
  const auto wrap_scalar = [&](const at::Tensor& value) {
    return wrap(value.contiguous(), Sharding(mesh, scalar, {}, {.dtype = loss->sharding.dtype()}));
  };
  if (reduction == at::Reduction::None) {
    std::vector<Placement> placements(scalar);
    for (const int axis : loss->others) {
      placements[static_cast<size_t>(axis)] = loss->sharding.placement(axis);
    }
    const Sharding as(mesh, std::move(placements), {self.size(0)},
                      {.dtype = loss->sharding.dtype(), .order = loss->sharding.order()});
    const at::Tensor each = reduced(entry, rows, mesh, loss->axes, ReduceOp::sum);
    finish(stack, entry, {wrap(each, as), wrap_scalar(at::zeros({}, local.options()))});
    return true;
  }
  std::vector<int> axes = loss->axes;
  axes.insert(axes.end(), loss->others.begin(), loss->others.end());
  // Every rank of the class axis has the whole weight of its rows; it must count once.
  const double copies = mesh.size(loss->axes[0]);
  const at::Tensor both = reduced(entry, at::stack({rows.sum(), loss->weight.sum() / copies}), mesh,
                                  axes, ReduceOp::sum);
  const at::Tensor total = both[1].clone();
  const at::Tensor value = reduction == at::Reduction::Mean ? both[0] / total : both[0].clone();
  finish(stack, entry, {wrap_scalar(value), wrap_scalar(total)});
  return true;
}

bool nll_loss_backward(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor grad = args[0].toTensor();
  const at::Tensor self = args[1].toTensor();
  const auto loss = class_loss(self, args[2].toTensor(), args[3], args[5].toInt());
  const ShardedMeta* given = sharded_meta(grad);
  const ShardedMeta* total = sharded_meta(args[6].toTensor());
  if (!loss || given == nullptr || given->lazy() != nullptr || total == nullptr) return false;
  const int64_t reduction = args[4].toInt();
  std::vector<Placement> placements(static_cast<size_t>(loss->sharding.mesh().ndim()));
  if (reduction == at::Reduction::None) {
    for (const int axis : loss->others) {
      placements[static_cast<size_t>(axis)] = loss->sharding.placement(axis);
    }
  }
  at::Tensor own;
  {
    const comm::CallSite site({.op = entry.name, .implicit = true});
    own = exec::redistribute(given->local(), given->sharding(),
                             given->sharding().with_placements(placements), {.may_alias = true});
  }
  at::Tensor rows = -own * loss->weight;
  if (reduction == at::Reduction::Mean) {
    if (!total->sharding().is_replicated()) return false;
    rows = rows / total->local();
  }
  const at::Tensor local =
      at::zeros_like(sharded_meta(self)->local(), at::MemoryFormat::Contiguous);
  if (local.size(1) > 0)
    local.scatter_add_(1, loss->index.unsqueeze(1), loss->rows(rows).unsqueeze(1));
  finish(stack, entry, {wrap_like(local, loss->sharding)});
  return true;
}

}  // namespace

void install_class_losses() {
  set_decomposition("aten::_log_softmax", log_softmax);
  set_decomposition("aten::_log_softmax_backward_data", log_softmax_backward);
  set_decomposition("aten::logsumexp", logsumexp);
  set_decomposition("aten::nll_loss_forward", nll_loss);
  set_decomposition("aten::nll_loss_backward", nll_loss_backward);
}

}  // namespace tessera::dtensor
