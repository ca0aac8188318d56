// The cost of a collective among thread ranks: small ones are dominated by wake-ups, large ones by
// memory bandwidth.
#include <ATen/ops/ones.h>

#include <chrono>
#include <cstdio>
#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "tessera/comm/threads.h"

namespace {

using namespace tessera;

/// Seconds per all_reduce of `count` floats among `n` ranks, averaged over `rounds`.
double all_reduce_seconds(int n, int rounds, int64_t count) {
  double seconds = 0;
  comm::run_ranks(n, [&](int rank) {
    std::vector<int> everyone(static_cast<size_t>(n));
    std::iota(everyone.begin(), everyone.end(), 0);
    auto& backend = comm::current_world()->group(everyone)->backend(c10::kCPU);
    std::vector<at::Tensor> t = {at::ones({count})};
    backend.allreduce(t)->wait();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; ++i) backend.allreduce(t)->wait();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (rank == 0) seconds = spent.count() / rounds;
  });
  return seconds;
}

}  // namespace

int main() {
  std::printf("all_reduce among thread ranks\n%8s %14s %14s\n", "ranks", "16 B [us]",
              "64 MiB [ms]");
  for (const int n : {1, 2, 4, 8, 64}) {
    const double small = all_reduce_seconds(n, n < 64 ? 20'000 : 1'000, 4);
    std::printf("%8d %14.2f", n, small * 1e6);
    if (n <= 4) std::printf(" %14.1f", all_reduce_seconds(n, 5, int64_t{16} << 20) * 1e3);
    std::printf("\n");
  }
}
