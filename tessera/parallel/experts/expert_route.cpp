#include "tessera/parallel/experts/expert_route.h"

#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/errors.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::parallel {
namespace {

int64_t sum_of(std::span<const int64_t> values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

std::vector<std::vector<int64_t>> rows_of_counts(const at::Tensor& counts) {
  const at::Tensor here = counts.cpu();
  std::vector<std::vector<int64_t>> out;
  for (int64_t i = 0; i < here.size(0); ++i) {
    const int64_t* row = here.const_data_ptr<int64_t>() + i * here.size(1);
    out.emplace_back(row, row + here.size(1));
  }
  return out;
}

at::Tensor count_choices(const at::Tensor& choice, int64_t experts) {
  require(choice.dim() == 2 && choice.scalar_type() == at::kLong, "expert_parallel: choice is ",
          c10::toString(choice.scalar_type()), " with ", choice.dim(),
          " dims; give the experts of each token as tokens x choices, int64");
  if (choice.numel() == 0) return at::zeros({experts}, choice.options());
  const at::Tensor counts = at::bincount(choice.flatten(), {}, experts);
  require(counts.size(0) == experts, "expert_parallel: a token chose expert ", counts.size(0) - 1,
          " of ", experts);
  return counts;
}

}  // namespace

ExpertRoute::ExpertRoute(const at::Tensor& choice, const RankGroup& tokens,
                         const RankGroup& experts, const ExpertOptions& options)
    : experts_(experts), tokens_(choice.size(0)), choices_(choice.size(1)) {
  require(options.experts > 0, "expert_parallel: ", options.experts,
          " experts; say how many there are on all ranks together");
  const auto counts =
      rows_of_counts(all_gather_counts(count_choices(choice, options.experts), tokens));
  const auto me = static_cast<size_t>(tokens.index());
  int64_t pairs = 0;
  for (const auto& of_rank : counts) pairs += sum_of(of_rank);
  keep_within_capacity(counts, pairs, options);
  plan_messages(tokens, options);
  sort_pairs(choice, counts[me], me);
}

void ExpertRoute::keep_within_capacity(const std::vector<std::vector<int64_t>>& counts,
                                       int64_t pairs, const ExpertOptions& options) {
  const auto experts = static_cast<size_t>(options.experts);
  load_.routed.assign(experts, 0);
  load_.kept.assign(experts, 0);
  if (options.capacity_factor) {
    require(*options.capacity_factor > 0, "expert_parallel: a capacity factor of ",
            *options.capacity_factor, "; give a positive one, or none to drop nothing");
    load_.capacity = static_cast<int64_t>(std::ceil(
        *options.capacity_factor * static_cast<double>(pairs) / static_cast<double>(experts)));
  }
  kept_ = counts;
  for (auto& of_rank : kept_) {
    for (size_t e = 0; e < experts; ++e) {
      load_.routed[e] += of_rank[e];
      if (options.capacity_factor) {
        of_rank[e] = std::min(of_rank[e], load_.capacity - load_.kept[e]);
      }
      load_.kept[e] += of_rank[e];
    }
  }
}

void ExpertRoute::plan_messages(const RankGroup& tokens, const ExpertOptions& options) {
  const auto held_by = [&](int rank) {
    return chunk_interval(options.experts, experts_.size(), rank);
  };
  const auto kept_of = [&](size_t rank, Interval of) {
    return sum_of(std::span(kept_[rank])
                      .subspan(static_cast<size_t>(of.begin), static_cast<size_t>(of.size())));
  };
  const auto index_among_tokens = [&](int peer) {
    if (experts_.group == nullptr) return static_cast<size_t>(tokens.index());
    const auto all = tokens.group->ranks();
    const auto found = std::ranges::find(all, experts_.group->ranks()[static_cast<size_t>(peer)]);
    return static_cast<size_t>(found - all.begin());
  };
  const Interval mine = held_by(experts_.index());
  rows_.first_expert = mine.begin;
  rows_.counts.assign(static_cast<size_t>(mine.size()), 0);
  std::vector<std::vector<int64_t>> arriving;  // by peer, by local expert
  for (int peer = 0; peer < experts_.size(); ++peer) {
    send_.push_back(kept_of(static_cast<size_t>(tokens.index()), held_by(peer)));
    const size_t rank = index_among_tokens(peer);
    receive_.push_back(kept_of(rank, mine));
    arriving.emplace_back(kept_[rank].begin() + mine.begin, kept_[rank].begin() + mine.end);
  }
  std::vector<int64_t> by_expert, by_rank(static_cast<size_t>(sum_of(receive_)));
  for (size_t e = 0; e < rows_.counts.size(); ++e) {
    int64_t from_peer = 0;
    for (size_t peer = 0; peer < arriving.size(); ++peer) {
      const int64_t before = sum_of(std::span(arriving[peer]).first(e));
      for (int64_t i = 0; i < arriving[peer][e]; ++i) {
        const int64_t row = from_peer + before + i;
        by_rank[static_cast<size_t>(row)] = static_cast<int64_t>(by_expert.size());
        by_expert.push_back(row);
      }
      rows_.counts[e] += arriving[peer][e];
      from_peer += receive_[peer];
    }
  }
  by_expert_ = at::tensor(by_expert, at::kLong);
  by_rank_ = at::tensor(by_rank, at::kLong);
}

void ExpertRoute::sort_pairs(const at::Tensor& choice, const std::vector<int64_t>& counts,
                             size_t me) {
  const at::Tensor sorted = choice.flatten().argsort(/*stable=*/true, /*dim=*/0);
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    if (kept_[me][e] > 0) parts.push_back(sorted.narrow(0, first, kept_[me][e]));
    first += counts[e];
  }
  pairs_ = parts.empty() ? at::empty({0}, choice.options()) : at::cat(parts);
  by_expert_ = by_expert_.to(choice.device());
  by_rank_ = by_rank_.to(choice.device());
}

at::Tensor ExpertRoute::send(const at::Tensor& tokens) const {
  require(tokens.dim() == 2 && tokens.size(0) == tokens_, "expert_parallel: tokens are ",
          shape_text({tokens.sizes().begin(), tokens.sizes().end()}), ", choices of ", tokens_,
          "; give tokens x width");
  const at::Tensor rows = tokens.index_select(0, pairs_.div(choices_, "floor"));
  return exchange_rows(rows, experts_, send_, receive_).index_select(0, by_expert_);
}

at::Tensor ExpertRoute::return_sum(const at::Tensor& computed, const at::Tensor& gate) const {
  require(computed.dim() == 2 && computed.size(0) == sum_of(rows_.counts),
          "expert_parallel: the function returned ",
          shape_text({computed.sizes().begin(), computed.sizes().end()}), " for ",
          sum_of(rows_.counts), " rows; return one row for each");
  require(gate.dim() == 2 && gate.size(0) == tokens_ && gate.size(1) == choices_,
          "expert_parallel: gate is ", shape_text({gate.sizes().begin(), gate.sizes().end()}),
          ", choice ", tokens_, "x", choices_);
  const at::Tensor rows =
      exchange_rows(computed.index_select(0, by_rank_), experts_, receive_, send_);
  const at::Tensor weights = gate.flatten().index_select(0, pairs_).unsqueeze(1);
  return at::zeros({tokens_, computed.size(1)}, computed.options())
      .index_add(0, pairs_.div(choices_, "floor"), rows.mul(weights.to(rows.scalar_type())));
}

}  // namespace tessera::parallel
