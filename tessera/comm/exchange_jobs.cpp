#include "tessera/comm/exchange_jobs.h"

#include <algorithm>
#include <cstring>

#include "tessera/comm/block_pool.h"
#include "tessera/comm/flat_view.h"
#include "tessera/comm/thread_reduce.h"

namespace tessera::comm {
namespace {

/// Below this an all_reduce sends everything to everyone: a second trip takes longer.
constexpr int64_t kOneTripBytes = 128 << 10;

/// Smaller ones wake the threads too often; larger ones leave the cache before they are reduced.
/// The ones under way, of all ranks together, take at most kLandingBytes or so.
constexpr int64_t kLargestChunkBytes = 1 << 20;
constexpr int64_t kSmallestChunkBytes = 64 << 10;
constexpr int64_t kLandingBytes = 16 << 20;
constexpr int64_t kWindow = 4;

constexpr int kAddends = 0;  // rounds
constexpr int kResults = 1;

/// The others, beginning with my neighbour, so that not all ranks send to rank 0 first.
template <typename Visit>
void for_each_peer(const Exchange& exchange, const Visit& visit) {
  for (int step = 1; step < exchange.size(); ++step) {
    visit((exchange.rank() + step) % exchange.size());
  }
}

size_t at_rank(int rank) { return static_cast<size_t>(rank); }

}  // namespace

void MoveJob::begin(Exchange& exchange) {
  for_each_peer(exchange, [&](int peer) { exchange.receive(take_[at_rank(peer)], peer); });
  for_each_peer(exchange, [&](int peer) { exchange.send(give_[at_rank(peer)], peer); });
}

void MoveJob::finish(Exchange& exchange) {
  const at::Tensor& from = give_[at_rank(exchange.rank())];
  const at::Tensor& to = take_[at_rank(exchange.rank())];
  if (from.numel() > 0 && to.data_ptr() != from.const_data_ptr()) {
    std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes());
  }
  exchange.await_all();
}

JobList::JobList(std::vector<std::unique_ptr<ExchangeJob>> jobs) : jobs_(std::move(jobs)) {
  for (const auto& job : jobs_) {
    inputs.insert(inputs.end(), job->inputs.begin(), job->inputs.end());
    outputs.insert(outputs.end(), job->outputs.begin(), job->outputs.end());
  }
}

void JobList::begin(Exchange& exchange) {
  for (const auto& job : jobs_) job->begin(exchange);
}

void JobList::finish(Exchange& exchange) {
  for (const auto& job : jobs_) job->finish(exchange);
}

ReduceJob::Parts ReduceJob::all_reduce_parts(const at::Tensor& in, const at::Tensor& out, int rank,
                                             int size) {
  Parts parts;
  parts.in_place = in.const_data_ptr() == out.const_data_ptr();
  const int64_t bytes = static_cast<int64_t>(in.nbytes());
  if (bytes * (size - 1) <= kOneTripBytes) {
    parts.give.assign(static_cast<size_t>(size), flat_view(in));
    parts.result = flat_view(out);
    return parts;
  }
  const int64_t each = (in.numel() + size - 1) / size;
  for (int i = 0; i < size; ++i) {
    const int64_t begin = std::min(each * i, in.numel());
    const int64_t length = std::min(each, in.numel() - begin);
    parts.give.push_back(flat_view(in, begin, length));
    parts.shared.push_back(flat_view(out, begin, length));
  }
  parts.result = parts.shared[at_rank(rank)];
  return parts;
}

at::Tensor ReduceJob::chunk_of(const at::Tensor& part, int64_t k) const {
  if (part.numel() <= chunk_ && k == 0) return part;
  const int64_t begin = std::min(k * chunk_, part.numel());
  return flat_view(part, begin, std::min(chunk_, part.numel() - begin));
}

void ReduceJob::begin(Exchange& exchange) {
  const auto element = static_cast<int64_t>(parts_.result.element_size());
  const int64_t peers = std::max(exchange.size() - 1, 1);
  int64_t largest = 1;
  for (const auto& part : parts_.give) largest = std::max(largest, part.numel());
  chunk_ = std::clamp(kLandingBytes / (peers * kWindow), kSmallestChunkBytes, kLargestChunkBytes) /
           element;
  chunks_ = (largest + chunk_ - 1) / chunk_;
  window_ = std::min(chunks_, kWindow);

  const auto n = static_cast<size_t>(exchange.size());
  arriving_.assign(static_cast<size_t>(window_), std::vector<Exchange::Message*>(n));
  leaving_ = arriving_;
  const int64_t room = std::min(window_ * chunk_, parts_.result.numel());
  landing_.resize(n);
  for_each_peer(exchange, [&](int peer) {
    landing_[at_rank(peer)] = pooled_empty({room}, parts_.result.scalar_type());
  });
  for (int64_t k = 0; k < window_; ++k) post(exchange, k);
}

/// Posts the addends of chunk k, into the place that chunk k - window had.
void ReduceJob::post(Exchange& exchange, int64_t k) {
  const auto place = static_cast<size_t>(k % window_);
  const int64_t expected = chunk_of(parts_.result, k).numel();
  for_each_peer(exchange, [&](int peer) {
    const at::Tensor& landing = landing_[at_rank(peer)];
    const int64_t begin = std::min(static_cast<int64_t>(place) * chunk_, landing.numel());
    arriving_[place][at_rank(peer)] =
        exchange.receive(flat_view(landing, begin, expected), peer, kAddends);
  });
  for_each_peer(exchange, [&](int peer) {
    leaving_[place][at_rank(peer)] =
        exchange.send(chunk_of(parts_.give[at_rank(peer)], k), peer, kAddends);
  });
}

void ReduceJob::reduce(Exchange& exchange, int64_t k) {
  const auto place = k % window_;
  const at::Tensor result = chunk_of(parts_.result, k);
  std::vector<const void*> sources;
  for (int i = 0; i < exchange.size(); ++i) {
    const at::Tensor& from = i == exchange.rank() ? parts_.give[at_rank(i)] : landing_[at_rank(i)];
    const int64_t begin = (i == exchange.rank() ? k : place) * chunk_;
    sources.push_back(static_cast<const char*>(from.const_data_ptr()) +
                      begin * static_cast<int64_t>(from.element_size()));
  }
  void* target = result.data_ptr();
  reduce_flat(result.scalar_type(), {.op = op_, .factors = {}}, sources, {&target, 1},
              result.numel());
}

void ReduceJob::finish(Exchange& exchange) {
  const bool shares = !parts_.shared.empty();
  for (int64_t k = 0; k < chunks_; ++k) {
    const auto place = static_cast<size_t>(k % window_);
    for (auto* message : arriving_[place]) exchange.await(message);
    if (parts_.in_place) {
      for (auto* message : leaving_[place]) exchange.await(message);
    }
    if (shares) {
      for_each_peer(exchange, [&](int peer) {
        exchange.receive(chunk_of(parts_.shared[at_rank(peer)], k), peer, kResults);
      });
    }
    const at::Tensor result = chunk_of(parts_.result, k);
    if (result.numel() > 0) reduce(exchange, k);
    if (shares) for_each_peer(exchange, [&](int peer) { exchange.send(result, peer, kResults); });
    if (k + window_ < chunks_) post(exchange, k + window_);
  }
  exchange.await_all();
}

}  // namespace tessera::comm
