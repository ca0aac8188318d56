#include "tessera/exec/collectives.h"

#include <ATen/ops/zeros.h>

#include <limits>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/base/errors.h"
#include "tessera/collective/algorithms/out_of_place_all_reduce.h"
#include "tessera/collective/algorithms/pipelined_pack.h"
#include "tessera/exec/buffers.h"
#include "tessera/exec/wire.h"
#include "tessera/observe/call_site.h"

namespace tessera::exec {
c10d::ReduceOp c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::avg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::band:
      return c10d::ReduceOp::BAND;
    case ReduceOp::bor:
      return c10d::ReduceOp::BOR;
    case ReduceOp::bxor:
      return c10d::ReduceOp::BXOR;
  }
  return c10d::ReduceOp::SUM;
}

namespace {

/// The send buffer: the input itself if it already has the required layout.
at::Tensor packed(const Action& action, const at::Tensor& input) {
  at::Tensor contiguous = input.contiguous();
  if (!action.packs) return contiguous;
  at::Tensor send = empty_like_device(input, {action.send_numel}, input.scalar_type());
  // Padding is reduced with the rest and discarded, but must not contain trap values.
  if (action.move == plan::Move::reduce_scatter && !send.is_meta()) send.zero_();
  action.pack.run(contiguous, send);
  return send;
}

c10d::Backend& backend_for(const Action& action, const at::Tensor& tensor) {
  return action.group->backend(tensor.device().type());
}

/// Allocates the receive buffer, or the result itself; returns it as the messages see it.
at::Tensor landing(const Action& action, const at::Tensor& input, InFlight& flight) {
  if (!action.copies_self) {
    flight.receive = empty_like_device(input, {action.receive_numel}, input.scalar_type());
    return as_movable(flight.receive);
  }
  flight.result = empty_like_device(input, action.out_shape, input.scalar_type());
  flight.receive = action.unpacks
                       ? empty_like_device(input, {action.receive_numel}, input.scalar_type())
                       : flight.result;
  return as_movable(alias(flight.receive, {action.receive_numel}, action.receive_offset));
}

/// Converts element counts to counts of the elements that messages carry.
std::vector<int64_t> movable(std::vector<int64_t> counts, const at::Tensor& input) {
  const int64_t scale = movable_scale(input.scalar_type());
  if (scale != 1) {
    for (auto& n : counts) n *= scale;
  }
  return counts;
}

/// Whether packing chunk by chunk while sending pays off.
bool packs_while_sending(const Action& action, const at::Tensor& input, bool async) {
  constexpr int64_t kWorthwhileBytes = 1 << 20;
  return action.packs && action.move != plan::Move::all_gather && !async && input.is_cpu() &&
         action.send_numel * static_cast<int64_t>(input.element_size()) >= kWorthwhileBytes &&
         action.pack.fills_in_order();
}

InFlight start_packing(const Action& action, const at::Tensor& input) {
  InFlight flight;
  flight.send = input.contiguous();
  at::Tensor out = landing(action, input, flight);
  const auto bytes = static_cast<int64_t>(input.element_size());
  comm::Unpacked unpacked;
  unpacked.pack = [&action, source = flight.send, bytes](int64_t begin, int64_t count, char* to) {
    action.pack.run_stretch(source, begin / bytes, count / bytes, to);
  };
  unpacked.splits = movable(action.send_counts, input);
  unpacked.meanwhile = [&action, source = flight.send, result = flight.result]() mutable {
    if (action.copies_self) action.keep.run(source, result);
  };
  std::vector<int64_t> receive_counts = movable(action.receive_counts, input);
  c10d::AllToAllOptions options;
  options.asyncOp = false;
  flight.work = comm::all_to_all_packing(backend_for(action, input), out, std::move(unpacked),
                                         receive_counts, options);
  return flight;
}

InFlight start_moving(const Action& action, const at::Tensor& input, bool async) {
  if (packs_while_sending(action, input, async)) return start_packing(action, input);
  InFlight flight;
  flight.send = packed(action, input);
  at::Tensor in =
      as_movable(action.copies_self ? alias(flight.send, {action.send_numel}, action.send_offset)
                                    : flight.send);
  at::Tensor out = landing(action, input, flight);
  auto& backend = backend_for(action, input);
  if (action.move == plan::Move::all_gather) {
    c10d::AllgatherOptions options;
    options.asyncOp = async;
    flight.work = backend._allgather_base(out, in, options);
    return flight;
  }
  std::vector<int64_t> send_counts = movable(action.send_counts, input);
  std::vector<int64_t> receive_counts = movable(action.receive_counts, input);
  c10d::AllToAllOptions options;
  options.asyncOp = async;
  flight.work = backend.alltoall_base(out, in, receive_counts, send_counts, options);
  // Overlaps with the messages in flight.
  if (action.copies_self) action.keep.run(input.contiguous(), flight.result);
  return flight;
}

at::Tensor flip_sign(const at::Tensor& longs) {
  return longs.bitwise_xor(std::numeric_limits<int64_t>::min());
}

InFlight start_reducing(const Action& action, const at::Tensor& input,
                        const CollectiveOptions& options) {
  require(action.divide_by == 1 || c10::isFloatingType(input.scalar_type()) ||
              c10::isComplexType(input.scalar_type()),
          "a Partial(avg) of ", c10::toString(input.scalar_type()), " tensors has no exact value");
  const ReduceForm form = reduce_form(input.scalar_type(), action.reduce_op);
  InFlight flight;
  flight.send = packed(action, input);
  if (form.cast) flight.send = flight.send.to(form.dtype);
  flight.flips_sign = form.flips_sign;
  if (form.flips_sign) flight.send = flip_sign(flight.send);
  const bool fresh = form.cast || action.packs || !flight.send.is_same(input);
  auto& backend = backend_for(action, input);
  const at::ScalarType kept = form.cast ? form.dtype : input.scalar_type();
  if (action.move == plan::Move::all_reduce) {
    c10d::AllreduceOptions reduce;
    reduce.reduceOp = c10d_op(form.op);
    reduce.asyncOp = options.async;
    at::Tensor in = alias_as(flight.send, form.dtype);
    if (fresh || options.overwrite) {
      flight.receive = flight.send;
      std::vector<at::Tensor> tensors = {in};
      flight.work = backend.allreduce(tensors, reduce);
    } else {
      flight.receive = empty_like_device(input, {action.receive_numel}, kept);
      at::Tensor out = alias_as(flight.receive, form.dtype);
      flight.work = comm::all_reduce_into(backend, out, in, reduce);
    }
    return flight;
  }
  flight.receive = empty_like_device(input, {action.receive_numel}, kept);
  at::Tensor in = alias_as(flight.send, form.dtype);
  at::Tensor out = alias_as(flight.receive, form.dtype);
  c10d::ReduceScatterOptions reduce;
  reduce.reduceOp = c10d_op(form.op);
  reduce.asyncOp = options.async;
  flight.work = backend._reduce_scatter_base(out, in, reduce);
  return flight;
}

bool reduces(plan::Move move) {
  return move == plan::Move::all_reduce || move == plan::Move::reduce_scatter;
}

}  // namespace

InFlight start_collective(const Action& action, const at::Tensor& input,
                          const CollectiveOptions& options) {
  const comm::CallSite site({.axis = action.axis});
  InFlight flight = reduces(action.move) ? start_reducing(action, input, options)
                                         : start_moving(action, input, options.async);
  flight.dtype = input.scalar_type();
  return flight;
}

at::Tensor finish_collective(const Action& action, InFlight flight) {
  flight.work->wait();
  at::Tensor received = std::move(flight.receive);
  if (flight.flips_sign) received = flip_sign(received);
  if (received.scalar_type() != flight.dtype) received = received.to(flight.dtype);
  if (action.divide_by != 1) received.div_(action.divide_by);
  if (!action.unpacks) return alias(received, action.out_shape);
  at::Tensor out = action.copies_self
                       ? std::move(flight.result)
                       : empty_like_device(received, action.out_shape, received.scalar_type());
  action.unpack.run(received, out);
  return out;
}

bool is_complete(const InFlight& flight) { return flight.work->isCompleted(); }

}  // namespace tessera::exec
