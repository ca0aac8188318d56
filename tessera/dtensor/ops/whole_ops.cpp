#include <ATen/ops/cat.h>
#include <ATen/ops/isclose.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/graph_task.h>

#include <array>
#include <tuple>

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dispatch/composite.h"
#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/gathered_views.h"
#include "tessera/dtensor/dispatch/outside_call.h"
#include "tessera/dtensor/dispatch/view_replay.h"
#include "tessera/dtensor/dispatch/write_count.h"
#include "tessera/dtensor/kernels/register.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/ops/instance_norm.h"
#include "tessera/dtensor/resolve_bits.h"
#include "tessera/dtensor/tensor/lazy.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"

namespace tessera::dtensor {
namespace {

at::Tensor local_as(const OpEntry& entry, const at::Tensor& tensor, const Sharding& to) {
  const ShardedMeta* meta = sharded_meta(tensor);
  const comm::CallSite site({.op = entry.name, .implicit = true});
  return exec::redistribute(meta->local(), meta->sharding(), to, {.may_alias = true});
}

/// Whether a derivative formula of libtorch reads the number, not the program.
bool is_read_by_derivative(const at::Tensor& number) {
  constexpr int kNoBackward = -1;
  return torch::autograd::get_current_graph_task_id() != kNoBackward && plain_is_internal(number);
}

/// Whether this rank has no values of the tensor: it is on meta, or the rank is outside its mesh.
bool has_no_values(const at::Tensor& tensor) {
  const ShardedMeta* meta = sharded_meta(tensor);
  return tensor.is_meta() || (meta != nullptr && !meta->sharding().mesh().contains_me());
}

/// item() of a number that has no value here, in a derivative: libtorch asks for special cases (is
/// it NaN, is there a zero). It goes on as if the number were zero, so that fake ranks can plan it,
/// and ranks outside the mesh can go on: a gradient has one shape in all cases.
bool item_in_derivative(const OpEntry&, const c10::OperatorHandle&, Stack& stack) {
  const at::Tensor tensor = stack.back().toTensor();
  if (!has_no_values(tensor) || !is_read_by_derivative(tensor)) return false;
  stack.back() = c10::IValue(at::zeros({}, at::dtype(tensor.scalar_type())).item());
  return true;
}

/// The same for the places of zeros, which the derivative of prod asks for: there are none.
bool nonzero_in_derivative(const OpEntry&, const c10::OperatorHandle&, Stack& stack) {
  const at::Tensor tensor = stack.back().toTensor();
  const ShardedMeta* meta = sharded_meta(tensor);
  if (meta == nullptr || !has_no_values(tensor) || !is_read_by_derivative(tensor)) return false;
  const at::Tensor none = at::zeros({0, tensor.dim()}, meta->local().options().dtype(at::kLong));
  stack.back() = wrap(none, as_replicated(none, meta->sharding().mesh()));
  return true;
}

bool is_same_size(const OpEntry&, const c10::OperatorHandle&, Stack& stack) {
  const at::Tensor other = torch::jit::pop(stack).toTensor();
  const at::Tensor self = torch::jit::pop(stack).toTensor();
  torch::jit::push(stack, self.sizes() == other.sizes());
  return true;
}

/// libtorch asks this whenever it gives a tensor a tangent (forward-mode derivatives). Sharded
/// tensors are addressed by no memory, so sizes and strides, which it compares as well, decide. Its
/// levels of such derivatives are one list for all threads of a process: thread ranks would take
/// and end each other's.
bool has_same_storage_numel(const OpEntry&, const c10::OperatorHandle&, Stack& stack) {
  const at::Tensor tangent = torch::jit::peek(stack, 1, 2).toTensor();
  const ShardedMeta* meta = sharded_meta(torch::jit::peek(stack, 0, 2).toTensor());
  if (meta == nullptr || sharded_meta(tangent) == nullptr) return false;
  const comm::RankWorld& world = comm::world_of(meta->sharding().mesh());
  if (world.kind() == comm::RankWorld::Kind::threads && world.size() > 1) {
    throw NotSupported(
        "forward-mode derivatives (jvp, jacfwd, hessian, forward_ad) on thread ranks: libtorch has "
        "one list of their levels for all threads of a process; run the ranks as processes "
        "(tessera launch), or use reverse mode (vjp, jacrev)");
  }
  torch::jit::drop(stack, 2);
  torch::jit::push(stack, true);
  return true;
}

/// Whether a mask's rows begin with what they keep, so that nn.TransformerEncoder may make a nested
/// tensor of its input. Always false: a nested tensor has no global shape, and the encoder computes
/// the same from the padded input.
bool is_mask_left_aligned(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, false);
  return true;
}

/// Compares local parts; only the answer is reduced.
bool allclose(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::pop(stack, entry.args.size());
  const at::Tensor close = at::isclose(args[0].toTensor(), args[1].toTensor(), args[2].toDouble(),
                                       args[3].toDouble(), args[4].toBool());
  torch::jit::push(stack, close.all().item<bool>());
  return true;
}

bool dist(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::pop(stack, entry.args.size());
  const at::Tensor apart = args[0].toTensor().sub(args[1].toTensor());
  torch::jit::push(stack, at::linalg_vector_norm(apart, args[2].toScalar()));
  return true;
}

/// libtorch returns the tensor itself if its bit is not set.
template <ViewValue kBit>
bool resolve(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::pop(stack, entry.args.size());
  const at::Tensor self = args[0].toTensor();
  torch::jit::push(stack, has_bit(self, kBit) ? self.clone() : self);
  return true;
}

/// A view by global strides. A shard cannot be addressed by them, except for the tensor as it is. A
/// replicated tensor has its memory on this rank; any other contiguous one is gathered
/// (dtensor/dispatch/gathered_views.h).
bool as_strided(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  refuse_view_by_strides();
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor self = args[0].toTensor();
  const ShardedMeta* meta = sharded_meta(self);
  const Sharding& has = meta->sharding();
  const std::vector<int64_t> size = args[1].toIntVector();
  const std::vector<int64_t> stride = args[2].toIntVector();
  // Relative to self's first element: the storage before it is not available here.
  const int64_t asked = args[3].isNone() ? self.storage_offset() : args[3].toInt();
  const int64_t offset = asked - self.storage_offset();
  require(offset >= 0, entry.name, " of a sharded tensor with storage offset ",
          self.storage_offset(), ": offset ", asked, " is before its first element");
  torch::jit::drop(stack, entry.args.size());
  const auto push_view = [&](const at::Tensor& view) {
    // A view of a gathered view is one too: a write to it moves on to the base.
    const bool is_marked = sharded_meta(view)->is_copy_of_view();
    if (meta->is_copy_of_view() && !is_marked) mark_copy_of_view(view, meta->origin());
    share_write_count(meta->local(), view);
    view.unsafeGetTensorImpl()->set_storage_offset(self.storage_offset() + offset);
    torch::jit::push(stack, view);
    return true;
  };
  if (self.sizes().equals(size) && self.strides().equals(stride) && offset == 0) {
    return push_view(wrap(meta->local(), has));
  }
  const bool is_outside = !has.mesh().contains_me();
  const bool here =
      has.is_replicated() && (is_outside || self.strides().equals(meta->local().strides()));
  require(here || self.is_contiguous(), entry.name, "(", shape_text(size), ", strides ",
          list_text(stride), ") of a sharded tensor ", has,
          ": strides address one memory, which a sharded tensor does not have; use view, slice, "
          "select or permute");
  const Sharding as(has.mesh(), std::vector<Placement>(has.placements().size()), size,
                    {.dtype = has.dtype(), .stride = stride});
  const auto by_strides = [&](const at::Tensor& memory) {
    return is_outside ? empty_view(memory, as)
                      : memory.as_strided(size, stride, memory.storage_offset() + offset);
  };
  if (here) return push_view(wrap(by_strides(meta->local()), as));
  const at::Tensor whole = local_as(entry, self, has.replicated()).contiguous();
  const at::Tensor view = wrap_copy_of_view(by_strides(whole), as);
  mark_copy_of_view(view, make_origin(self, whole, has.replicated()));
  return push_view(view);
}

/// p.data += x writes to p's shard, and then gives p the data that it has.
bool is_same_lazy(const at::Tensor& a, const at::Tensor& b) {
  const ShardedMeta *left = sharded_meta(a), *right = sharded_meta(b);
  return right != nullptr && left->lazy() == right->lazy() &&
         left->local().is_same(right->local()) && left->sharding() == right->sharding() &&
         a.scalar_type() == b.scalar_type();
}

/// Whether the second tensor's contents may replace those of the first. Any tensor can become
/// sharded; a sharded one stays sharded.
bool can_become(const OpEntry&, const c10::OperatorHandle&, Stack& stack) {
  const at::Tensor from = torch::jit::pop(stack).toTensor();
  const at::Tensor to = torch::jit::pop(stack).toTensor();
  if (lazy_local(to) != nullptr && !is_same_lazy(to, from)) {
    throw NotSupported(
        "a parameter of fully_shard takes another tensor's data (module.to(...), p.data = x), but "
        "its shard is part of a group's memory: write to it (p.data.copy_(x)), convert the module "
        "before fully_shard, or by convert_shards");
  }
  const bool sharded = sharded_meta(from) != nullptr;
  if (sharded) attach_meta(from);
  torch::jit::push(stack, sharded);
  return true;
}

/// torch::load fills tensors by set_.
bool refuse_set(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const at::Tensor self = torch::jit::peek(stack, 0, entry.args.size()).toTensor();
  const ShardedMeta* meta = sharded_meta(self);
  throw NotSupported(
      join_text(entry.name, " gives a tensor the memory of another, which a sharded tensor",
                meta != nullptr ? join_text(" (", meta->sharding(), ")") : std::string(),
                " cannot take or give. ",
                lazy_local(self) != nullptr
                    ? "Register parametrizations before fully_shard, and write values by copy_"
                    : "torch::load does this: load a checkpoint instead, or load plain tensors and "
                      "x.copy_(distribute_tensor(loaded, mesh, placements))"));
}

/// set_(source): of itself, or between sharded tensors as `x.data = source`. Registering a
/// parametrization does this.
bool set_tensor(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  const at::Tensor self = torch::jit::peek(stack, 0, entry.args.size()).toTensor();
  const at::Tensor source = torch::jit::peek(stack, 1, entry.args.size()).toTensor();
  if (!self.is_same(source)) {
    const ShardedMeta* from = sharded_meta(source);
    const bool takes = from != nullptr && sharded_meta(self) != nullptr &&
                       lazy_local(self) == nullptr && lazy_local(source) == nullptr &&
                       !from->is_copy_of_view() && self.dtype() == source.dtype() &&
                       self.device() == source.device();
    if (!takes) return refuse_set(entry, op, stack);
    attach_meta(source);
    self.unsafeGetTensorImpl()->shallow_copy_from(source.getIntrusivePtr());
  }
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, self);
  return true;
}

/// Flattens all dims but the last. Not by size -1, which is ambiguous for an empty part.
at::Tensor as_rows(const at::Tensor& tensor) {
  return tensor.dim() == 1 ? tensor.unsqueeze(0) : tensor.flatten(0, -2);
}

/// linear_backward(self, grad_output, weight, mask): libtorch has a kernel for it on few devices. A
/// 1-dim weight is a one-row matrix whose result has no column dim.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_backward(const at::Tensor& self,
                                                               const at::Tensor& grad,
                                                               const at::Tensor& weight,
                                                               std::array<bool, 3> mask) {
  const bool is_row = weight.dim() == 1;
  const at::Tensor rows = as_rows(is_row ? grad.unsqueeze(-1) : grad);
  at::Tensor d_self;
  at::Tensor d_weight;
  at::Tensor d_bias;
  if (mask[0])
    d_self = rows.mm((is_row ? weight.unsqueeze(0) : weight).conj()).reshape(self.sizes());
  if (mask[1]) d_weight = rows.t().mm(as_rows(self).conj()).reshape(weight.sizes());
  if (mask[2]) d_bias = is_row ? rows.sum() : rows.sum(0);
  return {std::move(d_self), std::move(d_weight), std::move(d_bias)};
}

/// vander(x, N, increasing): libtorch writes the powers into a plain tensor that it creates.
bool vander(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor x = args[0].toTensor();
  if (x.dim() != 1) return false;  // libtorch has the error
  const int64_t columns = args[1].toOptional<int64_t>().value_or(x.size(0));
  if (columns < 0) return false;
  const bool increasing = args[2].toBool();
  const at::Tensor column = x.to(c10::promoteTypes(x.scalar_type(), at::kLong)).unsqueeze(1);
  at::Tensor powers = column.narrow(1, 0, 0);
  if (columns > 0) {
    const at::Tensor from_one = column.expand({x.size(0), columns - 1}).cumprod(1);
    powers = at::cat({at::ones_like(column), from_one}, 1);
  }
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, increasing ? powers : powers.flip({1}));
  return true;
}

}  // namespace

void install_whole_ops() {
  set_special_case("aten::_local_scalar_dense", item_in_derivative);
  set_special_case("aten::nonzero", nonzero_in_derivative);
  set_decomposition("aten::allclose", allclose);
  set_decomposition("aten::dist", dist);
  set_decomposition("aten::resolve_conj", resolve<ViewValue::conjugate>);
  set_decomposition("aten::resolve_neg", resolve<ViewValue::negative>);
  set_decomposition("aten::as_strided", as_strided);
  set_decomposition("aten::is_same_size", is_same_size);
  set_decomposition("aten::_has_same_storage_numel", has_same_storage_numel);
  set_decomposition("aten::_nested_tensor_from_mask_left_aligned", is_mask_left_aligned);
  set_decomposition("aten::set_.source_Tensor", set_tensor);
  for (const char* op :
       {"aten::set_.source_Storage", "aten::set_", "aten::set_.source_Storage_storage_offset"}) {
    set_decomposition(op, refuse_set);
  }
  set_decomposition("aten::_has_compatible_shallow_copy_type", can_become);
  set_decomposition("aten::instance_norm", instance_norm);
  set_decomposition("aten::vander", vander);
  add_local_kernel("aten::linear_backward",
                   c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(linear_backward)));
}

}  // namespace tessera::dtensor
