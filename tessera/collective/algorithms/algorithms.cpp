#include "tessera/collective/algorithms/algorithms.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tessera/collective/algorithms/flat_view.h"
#include "tessera/collective/block_pool.h"
#include "tessera/collective/reduce.h"

namespace tessera::comm {
namespace {

/// Below this size an all_reduce sends everything to every rank: a second round trip takes longer.
constexpr int64_t kOneTripBytes = 128 << 10;

/// Chunk sizes of a reduction. Larger chunks leave the cache before they are reduced, smaller ones
/// cost too many system calls. Those in flight, of all ranks together, take about kLandingBytes at
/// most.
constexpr int64_t kLargestChunkBytes = 256 << 10;
constexpr int64_t kSmallestChunkBytes = 64 << 10;
constexpr int64_t kLandingBytes = 16 << 20;
constexpr int64_t kWindow = 4;

/// Pieces that may be packed while sending use chunks too: sized so that all buffers stay in the
/// cache and the cost of waking threads is negligible.
constexpr int64_t kPackedChunkBytes = 512 << 10;
constexpr size_t kPackBuffers = 4;

constexpr int kAddends = 0;  // rounds
constexpr int kResults = 1;

/// The other ranks, starting with the next one, so that not all ranks send to rank 0 first.
template <typename Visit>
void for_each_peer(const Exchange& exchange, const Visit& visit) {
  for (int step = 1; step < exchange.size(); ++step) {
    visit((exchange.rank() + step) % exchange.size());
  }
}

size_t at_rank(int rank) { return static_cast<size_t>(rank); }

at::Tensor part_of(const at::Tensor& piece, int64_t begin, int64_t count) {
  return count == piece.numel() ? piece : flat_view(piece, begin, count);
}

/// The chunks of a piece, in elements: both sides must agree on them.
template <typename Visit>
void for_each_chunk(int64_t numel, int64_t chunk, const Visit& visit) {
  for (int64_t begin = 0; begin < numel; begin += chunk) {
    visit(begin, std::min(chunk, numel - begin));
  }
}

int64_t chunk_of(const at::Tensor& piece, const MoveAlgorithm::Options& options) {
  return options.in_chunks ? kPackedChunkBytes / static_cast<int64_t>(piece.element_size())
                           : std::max<int64_t>(piece.numel(), 1);
}

/// The round of a piece's chunks, which depends on its size, so that pieces of different sizes do
/// not match.
int round_of(int64_t numel, int64_t chunk) {
  return numel <= chunk ? 0 : static_cast<int>(numel % 32749) + 1;
}

void receive_all(Exchange& exchange, const std::vector<at::Tensor>& take,
                 const MoveAlgorithm::Options& options) {
  for_each_peer(exchange, [&](int peer) {
    const at::Tensor& piece = take[at_rank(peer)];
    const int64_t chunk = chunk_of(piece, options);
    for_each_chunk(piece.numel(), chunk, [&](int64_t begin, int64_t count) {
      exchange.receive(part_of(piece, begin, count), peer, round_of(piece.numel(), chunk));
    });
  });
}

/// Two ranks of an all_to_all that disagree on the size of a piece between them must both detect
/// it. The sender may have received everything that it expects; so if sends can complete before
/// they are received, it waits for a confirmation.
template <typename CountTo>
void confirm(Exchange& exchange, const CountTo& given, const std::vector<at::Tensor>& take) {
  if (!exchange.sends_ahead()) return;
  const at::Tensor answers = pooled_empty({2 * exchange.size()}, at::kByte).zero_();
  for_each_peer(exchange, [&](int peer) {
    if (given(peer) > 0) exchange.receive(flat_view(answers, peer, 1), peer, kResults);
  });
  for_each_peer(exchange, [&](int peer) {
    if (take[at_rank(peer)].numel() == 0) return;
    exchange.send(flat_view(answers, exchange.size() + peer, 1), peer, kResults);
  });
  exchange.await_all();
}

}  // namespace

void MoveAlgorithm::begin(Exchange& exchange) {
  receive_all(exchange, take_, options_);
  for_each_peer(exchange, [&](int peer) {
    const at::Tensor& piece = give_[at_rank(peer)];
    const int64_t chunk = chunk_of(piece, options_);
    for_each_chunk(piece.numel(), chunk, [&](int64_t begin, int64_t count) {
      exchange.send(part_of(piece, begin, count), peer, round_of(piece.numel(), chunk));
    });
  });
}

void MoveAlgorithm::finish(Exchange& exchange) {
  const at::Tensor& from = give_[at_rank(exchange.rank())];
  const at::Tensor& to = take_[at_rank(exchange.rank())];
  if (from.numel() > 0 && to.data_ptr() != from.const_data_ptr()) {
    std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes());
  }
  exchange.await_all();
  if (!options_.in_chunks) return;
  confirm(
      exchange, [&](int peer) { return give_[at_rank(peer)].numel(); }, take_);
}

PackAlgorithm::PackAlgorithm(Unpacked give, Tensors take)
    : give_(std::move(give)), take_(std::move(take)) {}

/// The peers' next chunks in turn, so that all connections are busy.
void PackAlgorithm::list_chunks(const Exchange& exchange) {
  std::vector<std::vector<Chunk>> by_peer(at_rank(exchange.size()));
  int64_t at = 0;
  for (int peer = 0; peer < exchange.size(); ++peer) {
    const int64_t count = give_.splits[at_rank(peer)];
    const int64_t chunk = chunk_of(take_[0], {.in_chunks = true});
    for_each_chunk(count, chunk, [&](int64_t begin, int64_t length) {
      by_peer[at_rank(peer)].push_back({peer, at + begin, length, round_of(count, chunk)});
    });
    at += count;
  }
  for (size_t round = 0, before = 1; before != chunks_.size(); ++round) {
    before = chunks_.size();
    for_each_peer(exchange, [&](int peer) {
      if (round < by_peer[at_rank(peer)].size()) chunks_.push_back(by_peer[at_rank(peer)][round]);
    });
  }
}

void PackAlgorithm::begin(Exchange& exchange) {
  receive_all(exchange, take_, {.in_chunks = true});
  list_chunks(exchange);
  int64_t largest = 0;
  for (const Chunk& chunk : chunks_) largest = std::max(largest, chunk.count);
  leaving_.resize(std::min(chunks_.size(), kPackBuffers));
  for (size_t place = 0; place < leaving_.size(); ++place) {
    buffers_.push_back(pooled_empty({largest}, take_[0].scalar_type()));
    pack_and_send(exchange, place);
  }
}

void PackAlgorithm::pack_and_send(Exchange& exchange, size_t k) {
  const Chunk& chunk = chunks_[k];
  const size_t place = k % leaving_.size();
  const at::Tensor buffer = part_of(buffers_[place], 0, chunk.count);
  give_.pack(chunk.begin * element_bytes(), chunk.count * element_bytes(),
             static_cast<char*>(buffer.data_ptr()));
  leaving_[place] = exchange.send(buffer, chunk.to, chunk.round);
  exchange.progress_once();
}

void PackAlgorithm::finish(Exchange& exchange) {
  for (size_t k = leaving_.size(); k < chunks_.size(); ++k) {
    exchange.await(leaving_[k % leaving_.size()]);
    pack_and_send(exchange, k);
  }
  const at::Tensor& mine = take_[at_rank(exchange.rank())];
  if (mine.numel() > 0) {
    const auto before = give_.splits.begin() + exchange.rank();
    const int64_t begin = std::accumulate(give_.splits.begin(), before, int64_t{0});
    give_.pack(begin * element_bytes(), static_cast<int64_t>(mine.nbytes()),
               static_cast<char*>(mine.data_ptr()));
  }
  give_.meanwhile();
  exchange.await_all();
  confirm(
      exchange, [&](int peer) { return give_.splits[at_rank(peer)]; }, take_);
}

AlgorithmList::AlgorithmList(std::vector<std::unique_ptr<Algorithm>> jobs)
    : jobs_(std::move(jobs)) {
  for (const auto& job : jobs_) {
    inputs.insert(inputs.end(), job->inputs.begin(), job->inputs.end());
    outputs.insert(outputs.end(), job->outputs.begin(), job->outputs.end());
  }
}

void AlgorithmList::begin(Exchange& exchange) {
  for (const auto& job : jobs_) job->begin(exchange);
}

void AlgorithmList::finish(Exchange& exchange) {
  for (const auto& job : jobs_) job->finish(exchange);
}

ReduceAlgorithm::Parts ReduceAlgorithm::all_reduce_parts(const at::Tensor& in,
                                                         const at::Tensor& out, int rank,
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

at::Tensor ReduceAlgorithm::chunk_of(const at::Tensor& part, int64_t k) const {
  if (part.numel() <= chunk_ && k == 0) return part;
  const int64_t begin = std::min(k * chunk_, part.numel());
  return flat_view(part, begin, std::min(chunk_, part.numel() - begin));
}

void ReduceAlgorithm::begin(Exchange& exchange) {
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

/// Posts the addends of chunk k, reusing the buffer of chunk k - window.
void ReduceAlgorithm::post(Exchange& exchange, int64_t k) {
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

void ReduceAlgorithm::reduce(Exchange& exchange, int64_t k) {
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

void ReduceAlgorithm::finish(Exchange& exchange) {
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
    exchange.progress_once();
  }
  exchange.await_all();
}

}  // namespace tessera::comm
