#include "tessera/collective/move.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cstring>

#include "tessera/collective/reduce.h"

namespace tessera::comm {
namespace {

// Below this many bytes in one rank's call, waking other ranks to help costs more than it saves.
constexpr int64_t kShareBytes = 512 * 1024;

/// Whether it is contiguous in host memory without lazy conjugation or negation.
bool is_flat(const at::Tensor& t) {
  return t.device().is_cpu() && t.is_contiguous() && !t.is_conj() && !t.is_neg();
}

int64_t byte_offset(const Piece& piece) {
  return piece.begin * static_cast<int64_t>(piece.tensor->element_size());
}

const void* read_address(const Piece& piece) {
  return static_cast<const char*>(piece.tensor->const_data_ptr()) + byte_offset(piece);
}

void* write_address(const Piece& piece) {
  return static_cast<char*>(piece.tensor->mutable_data_ptr()) + byte_offset(piece);
}

at::Tensor flat_view(const Piece& piece) {
  return piece.tensor->reshape({-1}).narrow(0, piece.begin, piece.count);
}

void store(const Piece& to, const at::Tensor& values) {
  // check_call: a non-contiguous tensor is only ever used whole.
  if (to.count == to.tensor->numel()) {
    to.tensor->copy_(values.view(to.tensor->sizes()));
  } else {
    to.tensor->view({-1}).narrow(0, to.begin, to.count).copy_(values);
  }
}

void copy(const Piece& to, const Piece& from) {
  if (to.count == 0) return;
  if (to.tensor->is_same(*from.tensor) && to.begin == from.begin) return;
  if (is_flat(*to.tensor) && is_flat(*from.tensor)) {
    void* target = write_address(to);
    const void* source = read_address(from);
    const auto bytes = static_cast<size_t>(to.count) * to.tensor->element_size();
    if (target != source) std::memmove(target, source, bytes);
  } else {
    store(to, flat_view(from));
  }
}

int64_t bytes_of(const Call& call) {
  int64_t bytes = 0;
  for (const auto* row : {&call.inputs, &call.outputs}) {
    for (const auto& t : *row) bytes += t.numel() * static_cast<int64_t>(t.element_size());
  }
  return bytes;
}

void reduce_pieces(const ReduceKind& kind, std::span<const Piece> sources,
                   std::span<const Piece> targets) {
  const auto flat = [](const Piece& p) { return is_flat(*p.tensor); };
  const auto dtype = sources.front().tensor->scalar_type();
  const int64_t count = sources.front().count;
  if (count == 0 || targets.empty()) return;
  if (sources.size() == 1 && kind.op != c10d::ReduceOp::PREMUL_SUM) {
    for (const auto& target : targets) copy(target, sources.front());
    return;
  }
  if (std::ranges::all_of(sources, flat) && std::ranges::all_of(targets, flat)) {
    c10::SmallVector<const void*, 8> from;
    c10::SmallVector<void*, 8> to;
    for (const auto& p : sources) from.push_back(read_address(p));
    for (const auto& p : targets) to.push_back(write_address(p));
    reduce_flat(dtype, kind, {from.data(), from.size()}, {to.data(), to.size()}, count);
    return;
  }
  std::vector<at::Tensor> values;
  for (const auto& p : sources) values.push_back(flat_view(p).resolve_conj().resolve_neg());
  at::Tensor result;
  if (values.front().device().is_cpu()) {
    result = values.front().clone();
    std::vector<const void*> from;
    for (auto& v : values) {
      v = v.contiguous();
      from.push_back(v.const_data_ptr());
    }
    void* const to = result.mutable_data_ptr();
    reduce_flat(dtype, kind, from, {&to, 1}, count);
  } else {
    result = reduce_tensors(kind, values);
  }
  for (const auto& p : targets) store(p, result);
}

}  // namespace

Move::Move(std::vector<const Call*> calls) : calls_(std::move(calls)) {
  const Call& first = *calls_.front();
  switch (comm_op(first.what)) {
    case CommOp::all_reduce:
      kind_ =
          first.what == Collective::all_reduce_sparse ? Kind::reduce_sparse : Kind::reduce_in_place;
      break;
    case CommOp::reduce:
      kind_ = Kind::reduce_in_place;
      break;
    case CommOp::reduce_scatter:
      kind_ = Kind::reduce_to_each;
      break;
    case CommOp::barrier:
      kind_ = Kind::nothing;
      break;
    default:
      kind_ = Kind::exchange;
  }
  const at::Tensor* lead = first.lead();
  if (lead == nullptr || lead->device().is_meta()) {
    kind_ = Kind::nothing;
    return;
  }
  if (first.reduces() && first.reduce.op_ == c10d::ReduceOp::PREMUL_SUM) {
    for (const Call* call : calls_) factors_.push_back(premul_factor(call->reduce));
  }
  const bool can_share = kind_ != Kind::nothing && kind_ != Kind::reduce_sparse && size() > 1;
  if (can_share && bytes_of(first) >= kShareBytes && all_flat()) shares_ = size();
}

bool Move::all_flat() const {
  return std::ranges::all_of(calls_, [](const Call* call) {
    const auto flat = [](const at::Tensor& t) { return is_flat(t); };
    return std::ranges::all_of(call->inputs, flat) && std::ranges::all_of(call->outputs, flat);
  });
}

void Move::run(int share) const {
  if (kind_ == Kind::nothing) return;
  // Writes by c10d are invisible to autograd, here as with any other backend.
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (kind_ == Kind::reduce_sparse) return reduce_sparse();
  if (kind_ == Kind::reduce_in_place) return reduce_in_place(share);
  const int begin = shares_ == 1 ? 0 : share;
  const int end = shares_ == 1 ? size() : share + 1;
  for (int rank = begin; rank < end; ++rank) {
    kind_ == Kind::exchange ? exchange(rank) : reduce_to(rank);
  }
}

void Move::exchange(int to) const {
  const Call& taker = *calls_[static_cast<size_t>(to)];
  for (int from = 0; from < size(); ++from) {
    if (!sends(taker, from, to)) continue;
    for (size_t part = 0; part < taker.parts(); ++part) {
      copy(taken(taker, from, size(), part),
           given(*calls_[static_cast<size_t>(from)], to, size(), part));
    }
  }
}

void Move::reduce_in_place(int share) const {
  const Call& first = *calls_.front();
  const ReduceKind kind{first.reduce.op_, factors_};
  c10::SmallVector<Piece, 8> sources;
  for (size_t i = 0; i < first.outputs.size(); ++i) {
    const int64_t count = first.outputs[i].numel();
    const int64_t begin = count * share / shares_;
    const int64_t end = count * (share + 1) / shares_;
    sources.clear();
    for (const Call* call : calls_) sources.push_back({&call->outputs[i], begin, end - begin});
    std::span<const Piece> targets(sources.data(), sources.size());
    if (first.what == Collective::reduce) targets = targets.subspan(first.root, 1);
    reduce_pieces(kind, {sources.data(), sources.size()}, targets);
  }
}

void Move::reduce_to(int to) const {
  const Call& taker = *calls_[static_cast<size_t>(to)];
  const ReduceKind kind{taker.reduce.op_, factors_};
  c10::SmallVector<Piece, 8> sources;
  for (size_t part = 0; part < taker.parts(); ++part) {
    sources.clear();
    for (const Call* call : calls_) sources.push_back(given(*call, to, size(), part));
    const Piece target = taken(taker, 0, size(), part);
    reduce_pieces(kind, {sources.data(), sources.size()}, {&target, 1});
  }
}

void Move::reduce_sparse() const {
  at::Tensor sum = calls_.front()->outputs[0];
  for (size_t rank = 1; rank < calls_.size(); ++rank) sum = sum + calls_[rank]->outputs[0];
  sum = sum.coalesce();
  for (const Call* call : calls_) at::Tensor(call->outputs[0]).copy_(sum);
}

void copy_piece(const Piece& to, const Piece& from) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  copy(to, from);
}

void move_message(const Call& send, const Call& recv) {
  const at::Tensor& from = send.inputs[0];
  const at::Tensor& to = recv.outputs[0];
  if (from.device().is_meta()) return;
  copy_piece({&to, 0, to.numel()}, {&from, 0, from.numel()});
}

}  // namespace tessera::comm
