#include "tessera/exec/redistribute.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <span>

#include "tessera/base/errors.h"
#include "tessera/exec/buffers.h"
#include "tessera/exec/collectives.h"
#include "tessera/exec/program.h"
#include "tessera/exec/reuse_mark.h"
#include "tessera/observe/call_history.h"

namespace tessera::exec {
namespace {

at::ScalarType scalar_type(DType dtype) { return static_cast<at::ScalarType>(dtype); }

/// A slice that may share memory: a contiguous range of each dim of the input.
std::optional<at::Tensor> slice_view(const Action& action, const at::Tensor& input) {
  if (!action.starts) return std::nullopt;
  int64_t offset = input.storage_offset();
  for (size_t d = 0; d < action.out_shape.size(); ++d) {
    offset += (*action.starts)[d] * input.strides()[d];
  }
  return input.as_strided(action.out_shape, input.strides(), offset);
}

at::Tensor run_slice(const Action& action, const at::Tensor& input, bool may_alias) {
  if (!action.packs) return input;
  if (may_alias) {
    if (auto view = slice_view(action, input)) return *view;
  }
  at::Tensor out = empty_like_device(input, action.out_shape, input.scalar_type());
  action.pack.run(input.contiguous(), out);
  return out;
}

at::Tensor run_local(const Action& action, const at::Tensor& input, bool may_alias) {
  switch (action.move) {
    case plan::Move::slice:
      return run_slice(action, input, may_alias);
    case plan::Move::keep_one:
      if (action.keeps) return input;
      return action.reduce_op == ReduceOp::product ? at::full_like(input, 1)
                                                   : at::zeros_like(input);
    case plan::Move::rescale:
      require(c10::isFloatingType(input.scalar_type()) || c10::isComplexType(input.scalar_type()),
              "an average of ", c10::toString(input.scalar_type()),
              " tensors is not exact: convert the tensor to a floating point dtype first, or use "
              "Partial(sum) and divide the result yourself");
      return input.mul(static_cast<double>(action.multiply_by) /
                       static_cast<double>(action.divide_by));
    default:
      // A group of one rank: no communication, the data is the same.
      return alias(input.contiguous(), action.out_shape);
  }
}

bool is_outside(const DeviceMesh& mesh) { return !mesh.contains_me() && mesh.my_rank(); }

/// What a rank outside both meshes gets, whatever it passed: a part without elements.
at::Tensor part_outside(const at::Tensor& given, const Sharding& from, const Sharding& to) {
  const at::ScalarType dtype = scalar_type(to.dtype());
  const auto shape = to.local_shape();
  const bool is_part = given.scalar_type() == dtype && std::ranges::equal(given.sizes(), shape);
  if (from == to && is_part) return given;
  return empty_like_device(given, at::IntArrayRef(shape.data(), shape.size()), dtype);
}

/// The local tensor as used here: a rank outside the mesh contributes nothing, whatever it passed.
at::Tensor checked_input(const at::Tensor& local, const Sharding& from) {
  require(local.defined(), "redistribute: an undefined tensor, expected the local part of ", from);
  if (is_outside(from.mesh())) {
    return empty_like_device(local, {0}, local.scalar_type());
  }
  require(std::ranges::equal(local.sizes(), from.local_shape()),
          "redistribute: the local tensor is ", shape_text(local.sizes()), ", rank ",
          from.mesh().my_rank().value_or(0), "'s part of ", from, " is ",
          shape_text(from.local_shape()));
  // Messages carry raw bytes, so lazy zeros, conjugation and negation are resolved.
  if (local._is_zerotensor()) [[unlikely]]
    return at::zeros(local.sizes(), local.options());
  return local.is_conj() || local.is_neg() ? local.resolve_conj().resolve_neg() : local;
}

/// Dtypes in which a sum of few numbers equals that in a wider dtype, up to rounding.
bool adds_up(at::ScalarType dtype) {
  return dtype == at::kDouble || dtype == at::kFloat || dtype == at::kHalf ||
         dtype == at::kBFloat16;
}

/// The smaller dtype is sent, unless values are still to be reduced and it could not represent
/// them: 0.5 + 0.5 is 1, but as integers it is 0 + 0.
at::ScalarType wire_dtype(const Sharding& from, at::ScalarType now, at::ScalarType then,
                          const TransferOptions& options) {
  if (options.wire_dtype) return *options.wire_dtype;
  if (from.has_partial() && !(adds_up(now) && adds_up(then))) return now;
  return c10::elementSize(then) < c10::elementSize(now) ? then : now;
}

/// A local tensor between actions.
struct LocalState {
  at::Tensor value;
  bool mine = false;  // not shared: it may be overwritten

  LocalState(const at::Tensor& local, at::ScalarType wire, const TransferOptions& options)
      : value(local.scalar_type() == wire ? local : local.to(wire)),
        mine(options.consume || !value.is_same(local)) {}

  void take(std::span<const Action> actions, bool may_alias) {
    for (const auto& action : actions) {
      if (action.group == nullptr) {
        value = run_local(action, value, may_alias || mine);
      } else {
        value = finish_collective(action, start_collective(action, value, {.overwrite = mine}));
        mine = true;
      }
    }
  }
};

/// A move without messages may be that of one rank alone.
uint64_t mark_of(const Program& program, const Sharding& from, const Sharding& to) {
  const auto talks = [](const Action& action) { return action.group != nullptr; };
  return std::ranges::any_of(program.actions(), talks) ? take_reuse_mark(from, to) : 0;
}

}  // namespace

struct Pending::State {
  std::shared_ptr<const Program> program;
  const Action* last = nullptr;     // the action in flight, if any
  std::span<const Action> after{};  // local ones
  InFlight in_flight;
  at::Tensor value;  // the result if nothing is in flight
  at::ScalarType dtype = at::kFloat;

  at::Tensor finish() {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (last != nullptr) {
      value = finish_collective(*last, std::move(in_flight));
      for (const auto& action : after) value = run_local(action, value, true);
      last = nullptr;
    }
    return value.scalar_type() == dtype ? value : value.to(dtype);
  }
};

Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&&) noexcept = default;
Pending::~Pending() = default;

at::Tensor Pending::wait() {
  require(state_ != nullptr, "wait() on a redistribution that was waited for already");
  return std::exchange(state_, nullptr)->finish();
}

bool Pending::done() const {
  return state_ == nullptr || state_->last == nullptr || is_complete(state_->in_flight);
}

at::Tensor redistribute(const at::Tensor& given, const Sharding& from, const Sharding& to,
                        const TransferOptions& options) {
  const at::Tensor local = checked_input(given, from);
  if (is_outside(from.mesh()) && is_outside(to.mesh())) return part_outside(given, from, to);
  const at::ScalarType then = scalar_type(to.dtype());
  if (from == to && local.scalar_type() == then) return local;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto program = cached_program(from, to);
  const at::ScalarType wire = wire_dtype(from, local.scalar_type(), then, options);
  LocalState local_state(local, wire, options);
  const comm::CallHistory history(mark_of(*program, from, to));
  local_state.take(program->actions(), options.may_alias);
  const at::Tensor& value = local_state.value;
  if (value.scalar_type() != then) return value.to(then);
  const bool shares = !local_state.mine && !program->actions().empty() && value.is_alias_of(local);
  return shares && !options.may_alias ? value.clone() : value;
}

Pending redistribute_async(const at::Tensor& given, const Sharding& from, const Sharding& to,
                           const TransferOptions& options) {
  const at::Tensor local = checked_input(given, from);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  Pending pending;
  pending.state_ = std::make_unique<Pending::State>();
  Pending::State& state = *pending.state_;
  state.program = cached_program(from, to);
  state.dtype = scalar_type(to.dtype());
  const std::span<const Action> actions = state.program->actions();
  const auto talks = [](const Action& action) { return action.group != nullptr; };
  const auto last = std::find_if(actions.rbegin(), actions.rend(), talks);
  if (last == actions.rend()) {
    state.value = redistribute(local, from, to, options);
    return pending;
  }
  const auto before = static_cast<size_t>(actions.rend() - last) - 1;
  LocalState local_state(local, wire_dtype(from, local.scalar_type(), state.dtype, options),
                         options);
  const comm::CallHistory history(mark_of(*state.program, from, to));
  local_state.take(actions.first(before), true);
  state.last = &*last;
  state.after = actions.subspan(before + 1);
  state.in_flight =
      start_collective(*last, local_state.value, {.overwrite = local_state.mine, .async = true});
  return pending;
}

}  // namespace tessera::exec
