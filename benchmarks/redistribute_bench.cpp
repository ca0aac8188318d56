// Redistribution between two Gloo processes, compared with the equivalent bare c10d call,
// alternately.
//
//   bare      libtorch's own Gloo, only the collective, on existing buffers in its layout
//   tessera   exec::redistribute: plan look-up, allocation of the result, copies, collective
//
// S0 -> S1 sends columns, which the bare call on flat buffers need not extract. Every process
// computes with one thread, as under torchrun.
//
// Prints medians over the repeats and the median of the pairwise differences.
//
//   redistribute_bench            four sizes
//   redistribute_bench 4096 60    only a tensor of 4096 x 4096, 60 times
#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tessera/exec/redistribute.h"
#include "tessera/transport/gloo.h"

namespace {

using namespace tessera;
using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double micros(const std::function<void()>& call) {
  const auto start = Clock::now();
  call();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Case {
  const char* name;
  Placement from;
  Placement to;
  /// The bare call for a full tensor of shape {n, n}.
  std::function<void()> bare;
};

/// Synchronizes the start of a call in both processes, over pipes: a collective would warm up the
/// threads of one of the two sides.
class Peer {
 public:
  Peer() {
    if (pipe(to_child_) != 0 || pipe(to_parent_) != 0) std::abort();
  }
  void i_am_child() { is_child_ = true; }

  void meet() {
    char byte = 0;
    const int out = is_child_ ? to_parent_[1] : to_child_[1];
    const int in = is_child_ ? to_child_[0] : to_parent_[0];
    if (write(out, &byte, 1) != 1 || read(in, &byte, 1) != 1) std::abort();
  }

 private:
  int to_child_[2];
  int to_parent_[2];
  bool is_child_ = false;
};

void run(c10d::Backend& bare, Peer& peer, const char* label, int64_t n, int repeats) {
  const DeviceMesh mesh = comm::init_device_mesh("tp=2");
  const int64_t half = n / 2;

  at::Tensor full = at::ones({n, n});
  at::Tensor part = at::ones({half, n});
  at::Tensor other = at::ones({half, n});
  std::vector<at::Tensor> in_place = {at::ones({n, n})};
  std::vector<int64_t> flat = {half * half, half * half};
  at::Tensor flat_part = part.view({-1});
  at::Tensor flat_other = other.view({-1});
  const std::vector<Case> cases = {
      {"S0 -> R", Shard(0), Replicate(), [&] { bare._allgather_base(full, part)->wait(); }},
      {"S0 -> S1", Shard(0), Shard(1),
       [&] { bare.alltoall_base(flat_other, flat_part, flat, flat)->wait(); }},
      {"P -> R", Partial(), Replicate(), [&] { bare.allreduce(in_place)->wait(); }},
      {"P -> S0", Partial(), Shard(0), [&] { bare._reduce_scatter_base(part, full)->wait(); }},
  };
  for (const auto& c : cases) {
    const Sharding from(mesh, {c.from}, {n, n});
    const Sharding to(mesh, {c.to}, {n, n});
    const at::Tensor local =
        at::ones(at::IntArrayRef(from.local_shape().data(), from.local_shape().size()));
    const auto ours = [&] { exec::redistribute(local, from, to); };
    std::vector<double> bare_us;
    std::vector<double> ours_us;
    std::vector<double> extra_us;
    for (int i = 0; i < repeats + 3; ++i) {
      peer.meet();
      const double b = micros(c.bare);
      peer.meet();
      const double o = micros(ours);
      if (i < 3) continue;
      bare_us.push_back(b);
      ours_us.push_back(o);
      extra_us.push_back(o - b);
    }
    if (mesh.my_rank() == 0) {
      std::printf("| %-7s | %-8s | %10.1f | %10.1f | %9.1f | %5.2f |\n", label, c.name,
                  median(bare_us), median(ours_us), median(extra_us),
                  median(ours_us) / median(bare_us));
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(20000 + getpid() % 20000).c_str(), 1);
  setenv("WORLD_SIZE", "2", 1);
  Peer peer;
  const pid_t child = fork();
  if (child == 0) peer.i_am_child();
  setenv("RANK", child == 0 ? "1" : "0", 1);
  if (child != 0) {
    std::printf(
        "Redistribution, two Gloo processes, float32\n\n"
        "| tensor  | move     |    bare us | tessera us |  extra us | ratio |\n"
        "|---------|----------|------------|------------|-----------|-------|\n");
    std::fflush(stdout);
  }
  const auto store = c10::make_intrusive<c10d::FileStore>(
      "/tmp/tessera_bench_" + std::string(std::getenv("MASTER_PORT")), 2);
  const auto bare = comm::make_gloo_backend({.store = store,
                                             .index = child == 0 ? 1 : 0,
                                             .size = 2,
                                             .timeout = std::chrono::seconds(60),
                                             .address = "127.0.0.1",
                                             .matched = false});
  at::set_num_threads(1);
  if (argc == 3) {
    run(*bare, peer, "given", std::atoi(argv[1]), std::atoi(argv[2]));
  } else {
    run(*bare, peer, "1 KiB", 16, 2000);
    run(*bare, peer, "64 KiB", 128, 1000);
    run(*bare, peer, "1 MiB", 512, 300);
    run(*bare, peer, "64 MiB", 4096, 15);
  }
  if (child == 0) return 0;
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
