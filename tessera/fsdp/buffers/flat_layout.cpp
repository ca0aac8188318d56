#include "tessera/fsdp/buffers/flat_layout.h"

#include <ATen/ops/_foreach_copy.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/fsdp/buffers/memory_views.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::fsdp {
namespace {

/// Below this size a separate message costs more than a copy.
constexpr int64_t kSmallBytes = 32 << 10;
/// Suffices for any kernel; in bytes, and in elements where the dtype may still change.
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t count) { return (count + kAlignment - 1) / kAlignment * kAlignment; }

int64_t bytes_of(at::ScalarType dtype, int64_t elements) {
  return elements * static_cast<int64_t>(c10::elementSize(dtype));
}

/// Whether a plain byte copy between them is valid.
bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cpu() && b.is_cpu() && a.scalar_type() == b.scalar_type() && a.is_contiguous() &&
         b.is_contiguous();
}

}  // namespace

FlatLayout::FlatLayout(std::vector<ParamShape> params, int ranks, int rank)
    : params_(std::move(params)), ranks_(ranks), rank_(rank) {
  add_to_slots();
  place_in_memory();
}

FlatLayout FlatLayout::with_dtype(at::ScalarType dtype) const {
  FlatLayout out = *this;
  const auto cast = [dtype](at::ScalarType& own) { own = c10::isFloatingType(own) ? dtype : own; };
  for (ParamShape& param : out.params_) cast(param.dtype);
  for (Slot& slot : out.slots_) cast(slot.dtype);
  out.place_in_memory();
  return out;
}

FlatLayout FlatLayout::joined(std::span<const FlatLayout* const> parts) {
  FlatLayout out(parts[0]->ranks_, parts[0]->rank_);
  std::map<at::ScalarType, size_t> shared;
  for (const FlatLayout* part : parts) {
    const size_t before = out.params_.size();
    std::vector<Place> begins;  // of the layout's slots
    for (const Slot& slot : part->slots_) {
      const auto fresh = out.slots_.size();
      const size_t at = slot.direct ? fresh : shared.try_emplace(slot.dtype, fresh).first->second;
      if (at == fresh) out.slots_.push_back({{}, slot.dtype, 0, slot.direct});
      begins.push_back({at, out.slots_[at].piece});
      out.slots_[at].piece += slot.piece;
      for (const size_t param : slot.params) out.slots_[at].params.push_back(before + param);
    }
    for (size_t i = 0; i < part->params(); ++i) {
      const Place& begin = begins[part->places_[i].slot];
      out.params_.push_back(part->params_[i]);
      out.places_.push_back({begin.slot, begin.offset + part->places_[i].offset});
    }
  }
  out.place_in_memory();
  return out;
}

void FlatLayout::add_to_slots() {
  std::map<at::ScalarType, size_t> shared;  // the slot of small parameters, by dtype
  for (size_t i = 0; i < params_.size(); ++i) {
    const ParamShape& param = params_[i];
    const int64_t most = numel_of(piece_shape(i, 0));  // rank 0 has the largest piece
    const bool direct =
        param.dim == 0 && bytes_of(param.dtype, numel_of(param.whole)) > kSmallBytes;
    if (direct) {
      places_.push_back({slots_.size(), 0});
      slots_.push_back({{i}, param.dtype, most, true});
      continue;
    }
    const auto [at, fresh] = shared.try_emplace(param.dtype, slots_.size());
    if (fresh) slots_.push_back({{}, param.dtype, 0, false});
    Slot& slot = slots_[at->second];
    places_.push_back({at->second, slot.piece});
    slot.params.push_back(i);
    slot.piece += ranks_ == 1 ? aligned(most) : most;
  }
}

void FlatLayout::place_in_memory() {
  slot_offsets_.clear();
  shard_shapes_.clear();
  gathered_bytes_ = 0;
  for (const Slot& slot : slots_) {
    slot_offsets_.push_back(gathered_bytes_);
    gathered_bytes_ += aligned(bytes_of(slot.dtype, slot.piece * ranks_));
  }
  for (size_t i = 0; i < params_.size(); ++i) {
    shard_shapes_.push_back(piece_shape(i, rank_));
    if (ranks_ == 1 || slots_[places_[i].slot].direct) continue;
    places_[i].whole_offset = gathered_bytes_;
    gathered_bytes_ += aligned(bytes_of(params_[i].dtype, numel_of(params_[i].whole)));
  }
}

std::vector<int64_t> FlatLayout::piece_shape(size_t param, int rank) const {
  std::vector<int64_t> shape = params_[param].whole;
  const int dim = params_[param].dim;
  if (dim == kWhole) return shape;
  int64_t& size = shape[static_cast<size_t>(dim)];
  size = chunk_interval(size, ranks_, rank).size();
  return shape;
}

at::Tensor FlatLayout::shard_in(size_t param, const at::Tensor& piece) const {
  return part_of(piece, places_[param].offset, shard_shape(param));
}

std::vector<at::Tensor> FlatLayout::slots_in(const at::Tensor& memory) const {
  std::vector<at::Tensor> out;
  for (size_t s = 0; s < slots_.size(); ++s) {
    out.push_back(placed(memory, slot_offsets_[s], {slots_[s].piece * ranks_}, slots_[s].dtype));
  }
  return out;
}

std::vector<at::Tensor> FlatLayout::wholes_in(const at::Tensor& memory) const {
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < params_.size(); ++i) {
    const Place& place = places_[i];
    const int64_t in_slot = slot_offsets_[place.slot] + bytes_of(params_[i].dtype, place.offset);
    out.push_back(placed(memory, is_in_slot(i) ? in_slot : place.whole_offset, params_[i].whole,
                         params_[i].dtype));
  }
  return out;
}

/// Calls copy(piece, part of the whole) for consecutive parts until the parameter is covered.
template <class Copy>
void FlatLayout::for_each_piece(size_t param, const at::Tensor& slot, const at::Tensor& whole,
                                const Copy& copy) const {
  const ParamShape& shape = params_[param];
  const Place& place = places_[param];
  const at::Tensor pieces = slot.view({ranks_, slots_[place.slot].piece});
  if (shape.dim == kWhole) {
    const int64_t count = whole.numel();
    for (int r = 0; r < ranks_; ++r) {
      copy(pieces[r].narrow(0, place.offset, count).view(shape.whole), whole);
    }
    return;
  }
  int first = 0;
  if (shape.dim == 0 && whole.is_contiguous() && whole.numel() > 0) {
    // One copy for all ranks with a full piece.
    const int64_t rows = chunk_interval(shape.whole[0], ranks_, 0).size();
    first = static_cast<int>(shape.whole[0] / rows);
    const int64_t each = rows * (whole.numel() / shape.whole[0]);
    copy(pieces.narrow(0, 0, first).narrow(1, place.offset, each),
         whole.narrow(0, 0, first * rows).view({first, each}));
  }
  for (int r = first; r < ranks_; ++r) {
    const Interval held = chunk_interval(shape.whole[static_cast<size_t>(shape.dim)], ranks_, r);
    const auto piece = piece_shape(param, r);
    if (numel_of(piece) == 0) continue;
    copy(pieces[r].narrow(0, place.offset, numel_of(piece)).view(piece),
         whole.narrow(shape.dim, held.begin, held.size()));
  }
}

/// The same as byte ranges, for parameters whose pieces are contiguous: visit(offset in the slot,
/// offset in the whole, number of bytes).
template <class Visit>
void FlatLayout::for_each_stretch(size_t param, const Visit& visit) const {
  const ParamShape& shape = params_[param];
  const Place& place = places_[param];
  const auto size = static_cast<int64_t>(c10::elementSize(shape.dtype));
  const int64_t count = numel_of(shape.whole);
  if (count == 0) return;
  for (int r = 0; r < ranks_; ++r) {
    const int64_t at = (r * slots_[place.slot].piece + place.offset) * size;
    if (shape.dim == kWhole) {
      visit(at, 0, count * size);
    } else {
      const Interval held = chunk_interval(shape.whole[0], ranks_, r);
      const int64_t row = count / shape.whole[0] * size;
      visit(at, held.begin * row, held.size() * row);
    }
  }
}

void FlatLayout::copy_out(size_t param, const at::Tensor& slot, const at::Tensor& whole) const {
  if (params_[param].dim <= 0 && same_layout(slot, whole)) {
    const auto* from = static_cast<const char*>(slot.const_data_ptr());
    auto* to = static_cast<char*>(whole.mutable_data_ptr());
    for_each_stretch(param, [&](int64_t in_slot, int64_t in_whole, int64_t bytes) {
      std::memcpy(to + in_whole, from + in_slot, static_cast<size_t>(bytes));
    });
    return;
  }
  for_each_piece(param, slot, whole,
                 [](const at::Tensor& piece, const at::Tensor& part) { part.copy_(piece); });
}

void FlatLayout::copy_in(size_t param, const at::Tensor& whole, const at::Tensor& slot) const {
  if (params_[param].dim <= 0 && same_layout(slot, whole)) {
    const auto* from = static_cast<const char*>(whole.const_data_ptr());
    auto* to = static_cast<char*>(slot.mutable_data_ptr());
    for_each_stretch(param, [&](int64_t in_slot, int64_t in_whole, int64_t bytes) {
      std::memcpy(to + in_slot, from + in_whole, static_cast<size_t>(bytes));
    });
    return;
  }
  for_each_piece(param, slot, whole,
                 [](const at::Tensor& piece, const at::Tensor& part) { piece.copy_(part); });
}

void FlatLayout::add_in(size_t param, const at::Tensor& whole, const at::Tensor& slot) const {
  for_each_piece(param, slot, whole,
                 [](const at::Tensor& piece, const at::Tensor& part) { piece.add_(part); });
}

void FlatLayout::append_pieces(size_t param, const at::Tensor& slot, const at::Tensor& whole,
                               std::vector<at::Tensor>& in_slot,
                               std::vector<at::Tensor>& in_whole) const {
  if (params_[param].dim <= 0 && whole.is_contiguous()) {
    const auto size = static_cast<int64_t>(c10::elementSize(params_[param].dtype));
    const at::Tensor elements = whole.view({-1});
    for_each_stretch(param, [&](int64_t at_slot, int64_t at_whole, int64_t bytes) {
      if (bytes == 0) return;
      in_slot.push_back(slot.narrow(0, at_slot / size, bytes / size));
      in_whole.push_back(elements.narrow(0, at_whole / size, bytes / size));
    });
    return;
  }
  for_each_piece(param, slot, whole, [&](const at::Tensor& piece, const at::Tensor& part) {
    in_slot.push_back(piece);
    in_whole.push_back(part);
  });
}

void copy_pieces(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  using Lists = std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>;
  std::map<std::pair<at::ScalarType, at::ScalarType>, Lists> dense;
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i].is_contiguous() && from[i].is_contiguous()) {
      auto& [all_to, all_from] = dense[{to[i].scalar_type(), from[i].scalar_type()}];
      all_to.push_back(to[i]);
      all_from.push_back(from[i]);
    } else {
      to[i].copy_(from[i], /*non_blocking=*/true);
    }
  }
  for (const auto& [types, lists] : dense) {
    at::_foreach_copy_(lists.first, lists.second, /*non_blocking=*/true);
  }
}

}  // namespace tessera::fsdp
