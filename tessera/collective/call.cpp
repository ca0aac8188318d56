#include "tessera/collective/call.h"

#include <c10/core/DeviceType.h>

#include "tessera/base/errors.h"
#include "tessera/collective/call_matching.h"
#include "tessera/collective/reduce.h"

namespace tessera::comm {
namespace {

using enum Collective;

/// Forms in which rank i's tensor k must match rank j's tensor k.
bool shapes_agree_by_place(Collective what) {
  switch (what) {
    case all_reduce:
    case all_reduce_coalesced:
    case all_reduce_sparse:
    case reduce:
    case broadcast:
    case all_gather_into_tensor:
    case all_gather_into_tensor_coalesced:
    case reduce_scatter:
    case reduce_scatter_tensor:
    case reduce_scatter_tensor_coalesced:
      return true;
    default:
      return false;
  }
}

/// Forms whose tensors are independent and may have different dtypes.
bool is_coalesced(Collective what) {
  return what == all_reduce_coalesced || what == all_gather_coalesced ||
         what == all_gather_into_tensor_coalesced || what == reduce_scatter_tensor_coalesced;
}

/// "2x3 Float", formatted only if an error needs it.
struct TensorText {
  const at::Tensor& tensor;

  std::string to_text() const {
    const auto sizes = tensor.sizes();
    return join_text(shape_text(std::span<const int64_t>(sizes.data(), sizes.size())), " ",
                     c10::toString(tensor.scalar_type()));
  }
};

/// The device of a tensor, likewise.
struct DeviceText {
  c10::Device device;
  std::string to_text() const { return device.str(); }
};

void check_tensor(const Call& call, const at::Tensor& t, std::string_view role) {
  const auto name = collective_name(call.what);
  require(t.defined(), name, ": an ", role, " tensor is undefined");
  if (call.what == all_reduce_sparse) return;
  require(t.layout() == c10::kStrided && t.unsafeGetTensorImpl()->has_storage(), name, ": an ",
          role, " tensor of ", TensorText{t},
          " holds no plain storage (sparse, nested or wrapped); communicate its parts");
  const at::Tensor& lead = *call.lead();
  require(t.device().type() == lead.device().type() &&
              (t.scalar_type() == lead.scalar_type() || is_coalesced(call.what)),
          name, ": the tensors of a call have one dtype and device type; found ",
          c10::toString(t.scalar_type()), " on ", DeviceText{t.device()}, " beside ",
          c10::toString(lead.scalar_type()), " on ", DeviceText{lead.device()});
}

void check_count(const Call& call, size_t found, size_t expected, std::string_view of_what) {
  require(found == expected, collective_name(call.what), ": ", found, " ", of_what, ", expected ",
          expected);
}

/// `whole` is split into `size` equal pieces of the numel of `piece`.
void check_chunks(const Call& call, const at::Tensor& whole, const at::Tensor& piece, int size,
                  std::string_view whole_role) {
  require(whole.numel() == piece.numel() * size && whole.scalar_type() == piece.scalar_type(),
          collective_name(call.what), " over ", size, " ranks: the ", whole_role, " of ",
          TensorText{whole}, " must have ", size, " times the elements of ", TensorText{piece});
  require(whole.is_contiguous(), collective_name(call.what), ": the ", whole_role, " of ",
          TensorText{whole}, " must be contiguous");
}

void check_offsets(const Call& call, const at::Tensor& t, std::span<const int64_t> offsets,
                   int size, std::string_view role) {
  check_count(call, offsets.size(), static_cast<size_t>(size) + 1, "offsets");
  require(offsets.back() == t.numel(), collective_name(call.what), ": ", role, " splits cover ",
          offsets.back(), " elements of a tensor of ", TensorText{t});
  require(t.is_contiguous(), collective_name(call.what), ": the ", role, " of ", TensorText{t},
          " must be contiguous");
}

/// Checks the number and sizes of tensors for a group of `size`.
void check_sizes(const Call& call, int index, int size) {
  const auto n = static_cast<size_t>(size);
  const auto me = static_cast<size_t>(index);
  switch (call.what) {
    case all_gather:
      check_count(call, call.inputs.size(), 1, "inputs");
      check_count(call, call.outputs.size(), n, "outputs");
      break;
    case all_gather_coalesced:
      check_count(call, call.outputs.size(), n * call.inputs.size(), "outputs");
      break;
    case all_gather_into_tensor:
    case all_gather_into_tensor_coalesced:
      check_count(call, call.outputs.size(), call.inputs.size(), "outputs");
      for (size_t i = 0; i < call.inputs.size(); ++i) {
        check_chunks(call, call.outputs[i], call.inputs[i], size, "output");
      }
      break;
    case reduce_scatter:
      check_count(call, call.inputs.size(), n, "inputs");
      check_count(call, call.outputs.size(), 1, "outputs");
      require(call.outputs[0].numel() == call.inputs[me].numel(), "reduce_scatter: the output of ",
              TensorText{call.outputs[0]}, " does not fit input ", index, " of ",
              TensorText{call.inputs[me]});
      break;
    case reduce_scatter_tensor:
    case reduce_scatter_tensor_coalesced:
      check_count(call, call.outputs.size(), call.inputs.size(), "outputs");
      for (size_t i = 0; i < call.inputs.size(); ++i) {
        check_chunks(call, call.inputs[i], call.outputs[i], size, "input");
      }
      break;
    case all_to_all:
      check_count(call, call.inputs.size(), n, "inputs");
      check_count(call, call.outputs.size(), n, "outputs");
      break;
    case all_to_all_single:
      check_offsets(call, call.inputs[0], call.input_offsets, size, "input");
      check_offsets(call, call.outputs[0], call.output_offsets, size, "output");
      break;
    case gather:
      check_count(call, call.inputs.size(), 1, "inputs");
      check_count(call, call.outputs.size(), index == call.root ? n : 0, "outputs");
      break;
    case scatter:
      check_count(call, call.outputs.size(), 1, "outputs");
      check_count(call, call.inputs.size(), index == call.root ? n : 0, "inputs");
      break;
    default:
      break;
  }
}

std::optional<std::string> tensor_difference(const at::Tensor& a, int rank_a, const at::Tensor& b,
                                             int rank_b, bool shapes) {
  const bool same_kind =
      a.scalar_type() == b.scalar_type() && a.device().type() == b.device().type();
  if (same_kind && (!shapes || a.sizes() == b.sizes())) return std::nullopt;
  const bool same_device = a.device().type() == b.device().type();
  const auto with_device = [&](const at::Tensor& t) {
    return same_device ? join_text(TensorText{t})
                       : join_text(TensorText{t}, " on ", t.device().str());
  };
  return join_text("rank ", rank_a, " gave ", with_device(a), ", rank ", rank_b, " gave ",
                   with_device(b));
}

std::optional<std::string> tensors_difference(const Call& a, int rank_a, const Call& b,
                                              int rank_b) {
  if (!shapes_agree_by_place(a.what)) {
    return tensor_difference(*a.lead(), rank_a, *b.lead(), rank_b, false);
  }
  const auto& row_a = a.inputs.empty() ? a.outputs : a.inputs;
  const auto& row_b = b.inputs.empty() ? b.outputs : b.inputs;
  for (size_t i = 0; i < row_a.size(); ++i) {
    if (auto found = tensor_difference(row_a[i], rank_a, row_b[i], rank_b, true)) return found;
  }
  return std::nullopt;
}

}  // namespace

size_t Call::parts() const {
  switch (what) {
    case all_reduce_coalesced:
      return outputs.size();
    case all_gather_coalesced:
    case all_gather_into_tensor_coalesced:
    case reduce_scatter_tensor_coalesced:
      return inputs.size();
    default:
      return 1;
  }
}

const at::Tensor* Call::lead() const {
  if (what == scatter && !outputs.empty()) return &outputs.front();
  if (!inputs.empty()) return &inputs.front();
  return outputs.empty() ? nullptr : &outputs.front();
}

bool Call::reduces() const {
  const CommOp op = comm_op(what);
  return op == CommOp::all_reduce || op == CommOp::reduce || op == CommOp::reduce_scatter;
}

void check_call(const Call& call, int index, int size) {
  require(call.mistake.empty(), call.mistake);
  for (const auto& t : call.inputs) check_tensor(call, t, "input");
  for (const auto& t : call.outputs) check_tensor(call, t, "output");
  if (call.root >= 0 || comm_op(call.what) == CommOp::broadcast || call.what == reduce ||
      call.what == gather || call.what == scatter) {
    require(call.root >= 0 && call.root < size, collective_name(call.what), ": root ", call.root,
            " is not in a group of ", size);
  }
  if (call.reduces()) {
    for (const auto& t : call.inputs) check_reduce(call.what, call.reduce, t.scalar_type());
    for (const auto& t : call.outputs) check_reduce(call.what, call.reduce, t.scalar_type());
  }
  check_sizes(call, index, size);
}

std::optional<std::string> difference(const Call& a, int rank_a, const Call& b, int rank_b) {
  if (a.what != b.what) {
    return join_text("rank ", rank_a, " called ", collective_name(a.what), ", rank ", rank_b,
                     " called ", collective_name(b.what));
  }
  if (a.reduces() && a.reduce.op_ != b.reduce.op_) {
    return join_text("rank ", rank_a, " reduces with ", reduce_op_name(a.reduce.op_), ", rank ",
                     rank_b, " with ", reduce_op_name(b.reduce.op_));
  }
  if (a.root != b.root) {
    return join_text("rank ", rank_a, " says that the root is group index ", a.root, ", rank ",
                     rank_b, " says ", b.root);
  }
  if (a.parts() != b.parts()) {
    return join_text("rank ", rank_a, " gave ", a.parts(), " tensors, rank ", rank_b, " gave ",
                     b.parts(), " tensors");
  }
  if (a.lead() == nullptr || b.lead() == nullptr) return std::nullopt;
  if (auto found = tensors_difference(a, rank_a, b, rank_b)) return found;
  if (a.history == b.history) return std::nullopt;
  return join_text("ranks ", rank_a, " and ", rank_b,
                   " call it for different ops: ", history_mistake(a.history));
}

std::string history_mistake(uint64_t history) {
  if ((history & kGradientHistory) != 0) {
    return "they have gradients of different parameters of one fully_shard group; "
           "set_reduce_unused_parameters(module, true) counts unused ones as zeros";
  }
  if ((history & kGatherHistory) != 0) {
    return "they gather different groups of fully_shard: one of them skipped a layer that the "
           "other uses (draw such choices alike on all ranks, or "
           "set_reduce_unused_parameters(module, true)), or gathered a group again, because it "
           "alone wrote to its shards, through to_local(p) or p.data";
  }
  return "one of them gathered a tensor again whose copy the other still uses, because one rank "
         "alone wrote to its local part, through to_local(x) or x.data; write to the sharded "
         "tensor, or on all ranks";
}

Piece given(const Call& call, int to, int size, size_t part) {
  const auto whole = [](const at::Tensor& t) { return Piece{&t, 0, t.numel()}; };
  const auto place = static_cast<size_t>(to);
  switch (call.what) {
    case broadcast:
      return whole(call.outputs[part]);
    case all_to_all:
    case scatter:
    case reduce_scatter:
      return whole(call.inputs[place]);
    case all_to_all_single:
      return {&call.inputs[0], call.input_offsets[place],
              call.input_offsets[place + 1] - call.input_offsets[place]};
    case reduce_scatter_tensor:
    case reduce_scatter_tensor_coalesced: {
      const int64_t count = call.inputs[part].numel() / size;
      return {&call.inputs[part], to * count, count};
    }
    default:
      return whole(call.inputs[part]);
  }
}

Piece taken(const Call& call, int from, int size, size_t part) {
  const auto whole = [](const at::Tensor& t) { return Piece{&t, 0, t.numel()}; };
  const auto place = static_cast<size_t>(from);
  switch (call.what) {
    case all_gather:
    case all_to_all:
    case gather:
      return whole(call.outputs[place]);
    case all_gather_coalesced:
      return whole(call.outputs[place * call.parts() + part]);
    case all_gather_into_tensor:
    case all_gather_into_tensor_coalesced: {
      const int64_t count = call.outputs[part].numel() / size;
      return {&call.outputs[part], from * count, count};
    }
    case all_to_all_single:
      return {&call.outputs[0], call.output_offsets[place],
              call.output_offsets[place + 1] - call.output_offsets[place]};
    default:
      return whole(call.outputs[part]);
  }
}

bool sends(const Call& call, int from, int to) {
  switch (call.what) {
    case broadcast:
      return from == call.root && to != call.root;
    case scatter:
      return from == call.root;
    case gather:
      return to == call.root;
    default:
      return true;
  }
}

std::optional<std::string> misfit(std::span<const Call* const> calls,
                                  std::span<const int> world_ranks) {
  const Call& first = *calls.front();
  if (shapes_agree_by_place(first.what) || first.what == barrier) return std::nullopt;
  const int size = static_cast<int>(calls.size());
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      if (!sends(first, from, to)) continue;
      for (size_t part = 0; part < first.parts(); ++part) {
        const Piece out = given(*calls[static_cast<size_t>(from)], to, size, part);
        const Piece in = taken(*calls[static_cast<size_t>(to)], from, size, part);
        if (out.tensor->scalar_type() != in.tensor->scalar_type()) {
          return join_text("rank ", world_ranks[static_cast<size_t>(from)], " gives ",
                           c10::toString(out.tensor->scalar_type()), " to rank ",
                           world_ranks[static_cast<size_t>(to)], ", which expects ",
                           c10::toString(in.tensor->scalar_type()));
        }
        if (out.count != in.count) {
          return join_text("rank ", world_ranks[static_cast<size_t>(from)], " gives ", out.count,
                           " elements to rank ", world_ranks[static_cast<size_t>(to)],
                           ", which expects ", in.count, " from it");
        }
      }
    }
  }
  return std::nullopt;
}

}  // namespace tessera::comm
