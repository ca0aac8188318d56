#include "tessera/parallel/context/sequence_order.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/base/iota_vector.h"

namespace tessera {
namespace {

void append(std::vector<Interval>& list, Interval next) {
  if (next.size() <= 0) return;
  if (!list.empty() && list.back().end == next.begin) {
    list.back().end = next.end;
  } else {
    list.push_back(next);
  }
}

/// The front part of each rank from the first rank on, then the back parts from the last rank on.
std::vector<std::vector<Interval>> head_tail_parts(int64_t begin, int64_t length, int ranks) {
  std::vector<std::vector<Interval>> parts(static_cast<size_t>(ranks));
  const auto size_of = [&](int rank) { return chunk_interval(length, ranks, rank).size(); };
  int64_t front = begin;
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t half = (size_of(rank) + 1) / 2;
    append(parts[static_cast<size_t>(rank)], {front, front + half});
    front += half;
  }
  for (int rank = ranks - 1; rank >= 0; --rank) {
    const int64_t half = size_of(rank) / 2;
    append(parts[static_cast<size_t>(rank)], {front, front + half});
    front += half;
  }
  return parts;
}

at::Tensor index_of(std::span<const Interval> intervals) {
  std::vector<at::Tensor> parts;
  for (const Interval& part : intervals)
    parts.push_back(at::arange(part.begin, part.end, at::kLong));
  return parts.empty() ? at::empty({0}, at::kLong) : at::cat(parts);
}

}  // namespace

SequenceOrder::SequenceOrder(std::vector<Interval> runs) : runs_(std::move(runs)) {
  int64_t row = 0;
  for (const Interval& run : runs_) {
    starts_.push_back(row);
    row += run.size();
  }
}

SequenceOrder SequenceOrder::head_tail(int64_t length, int ranks) {
  const int64_t one[] = {length};
  return head_tail_of_documents(one, ranks);
}

SequenceOrder SequenceOrder::head_tail_of_documents(std::span<const int64_t> lengths, int ranks) {
  require(ranks >= 1, "head_tail: ", ranks, " ranks; at least one is needed");
  std::vector<std::vector<Interval>> by_rank(static_cast<size_t>(ranks));
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    require(length >= 0, "head_tail: a length of ", length);
    const auto parts = head_tail_parts(begin, length, ranks);
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      for (const Interval& part : parts[rank]) append(by_rank[rank], part);
    }
    begin += length;
  }
  std::vector<Interval> runs;
  for (const auto& part : by_rank) {
    for (const Interval& run : part) append(runs, run);
  }
  return SequenceOrder(std::move(runs));
}

SequenceOrder SequenceOrder::of_positions(std::span<const int64_t> positions) {
  const auto n = static_cast<int64_t>(positions.size());
  std::vector<bool> seen(positions.size(), false);
  std::vector<Interval> runs;
  for (const int64_t position : positions) {
    require(position >= 0 && position < n && !seen[static_cast<size_t>(position)],
            "of_positions: position ", position, " of a sequence of ", n,
            " is out of range or listed twice; give a permutation of 0..", n - 1);
    seen[static_cast<size_t>(position)] = true;
    append(runs, {position, position + 1});
  }
  return SequenceOrder(std::move(runs));
}

void SequenceOrder::check_length(int64_t len) const {
  require(is_natural() || len == length(), "an order of ", length(),
          " positions for a sequence of ", len, "; make it for the length of the sequence");
}

std::vector<Interval> SequenceOrder::positions_of(Interval rows) const {
  if (is_natural()) return rows.size() > 0 ? std::vector{rows} : std::vector<Interval>();
  std::vector<Interval> out;
  for (size_t i = 0; i < runs_.size(); ++i) {
    const int64_t first = std::max(rows.begin, starts_[i]);
    const int64_t last = std::min(rows.end, starts_[i] + runs_[i].size());
    const int64_t shift = runs_[i].begin - starts_[i];
    append(out, {first + shift, std::max(first, last) + shift});
  }
  return out;
}

std::vector<Interval> SequenceOrder::rows_of(Interval positions) const {
  if (is_natural()) return positions.size() > 0 ? std::vector{positions} : std::vector<Interval>();
  std::vector<size_t> by_position = iota_vector(runs_.size());
  std::ranges::sort(by_position, {}, [&](size_t i) { return runs_[i].begin; });
  std::vector<Interval> out;
  for (const size_t i : by_position) {
    const int64_t first = std::max(positions.begin, runs_[i].begin);
    const int64_t last = std::min(positions.end, runs_[i].end);
    const int64_t shift = starts_[i] - runs_[i].begin;
    append(out, {first + shift, std::max(first, last) + shift});
  }
  return out;
}

at::Tensor SequenceOrder::indices(int64_t len) const {
  check_length(len);
  return index_of(positions_of({0, len}));
}

at::Tensor SequenceOrder::inverse_indices(int64_t len) const {
  check_length(len);
  return index_of(rows_of({0, len}));
}

at::Tensor reorder_sequence(const at::Tensor& tensor, int64_t dim, const SequenceOrder& order) {
  if (order.is_natural()) return tensor;
  return tensor.index_select(dim, order.indices(tensor.size(dim)).to(tensor.device()));
}

at::Tensor restore_sequence(const at::Tensor& tensor, int64_t dim, const SequenceOrder& order) {
  if (order.is_natural()) return tensor;
  return tensor.index_select(dim, order.inverse_indices(tensor.size(dim)).to(tensor.device()));
}

}  // namespace tessera
