// Attention over a sequence that thread ranks share, by each method, against one rank with the
// whole sequence. Ranks share the cores of the machine, so the figures compare work and memory
// traffic, not speed-up: a ring that takes the time of the full one costs nothing extra.
//
//   build/benchmarks/context_parallel_bench [rows = 2048] [ranks = 2]
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>

#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/parallel/context/context_parallel.h"

using namespace tessera;

constexpr int kRepeats = 5;

/// The least time of a forward and backward, in milliseconds.
template <class Step>
double best_of(Step step) {
  double best = 1e30;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    step();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return best;
}

int main(int argc, char** argv) {
  const int64_t rows = argc > 1 ? std::atoll(argv[1]) : 2048;
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 2;
  const at::Tensor q = at::randn({1, 8, rows, 64});
  const auto leaf = [](const at::Tensor& t) { return t.clone().set_requires_grad(true); };
  const double full = best_of([&] {
    at::Tensor x = leaf(q);
    at::scaled_dot_product_attention(x, x, x, {}, 0.0, true).backward(q);
  });
  std::cout << "full, one rank: " << full << " ms\n";
  for (const bool balanced : {false, true}) {
    const auto order = balanced ? SequenceOrder::head_tail(rows, ranks) : SequenceOrder();
    for (const auto method :
         {ContextMethod::ring, ContextMethod::all_gather, ContextMethod::all_to_all}) {
      double slowest = 0;
      comm::run_ranks(ranks, [&](int rank) {
        const DeviceMesh mesh = comm::init_device_mesh("cp=" + std::to_string(ranks));
        const at::Tensor part = distribute_tensor(reorder_sequence(q, 2, order), mesh, {Shard(2)});
        const double took = best_of([&] {
          at::Tensor x = leaf(part);
          context_parallel_attention(x, x, x, {.is_causal = true},
                                     {.method = method, .order = order})
              .backward(part);
        });
        if (rank == 0) slowest = took;
      });
      std::cout << context_method_name(method) << (balanced ? ", head-tail" : "") << ", " << ranks
                << " ranks: " << slowest << " ms\n";
    }
  }
}
