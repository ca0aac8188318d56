// The cost of a group of many processes on one machine, compared with libtorch's Gloo: sockets,
// memory, threads, the time to create it, and the time of small and large calls.
//
//   gloo      libtorch's ProcessGroupGloo over a TCPStore, as torch.distributed creates it
//   tessera   a process world and its groups
//
// Every figure is the maximum over all ranks; those of a group are means over two groups of all
// ranks after the first. Memory is private and dirty (what a process adds to the machine's use).
// Every process computes with one thread.
//
//   transport_bench            4, 16 and 64 processes
//   transport_bench 16         only 16
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tessera/transport/gloo.h"

namespace {

using namespace tessera;
using Clock = std::chrono::steady_clock;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

/// Besides the first and the last: four ranks allow four orders of ranks.
constexpr int kGroups = 2;
constexpr std::chrono::milliseconds kTimeout = std::chrono::minutes(5);

double millis(const std::function<void()>& call) {
  const auto start = Clock::now();
  call();
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// The resources that this process holds now.
struct Holds {
  double sockets = 0;
  double kilobytes = 0;
  double threads = 0;
};

double field(const char* file, const std::string& name) {
  std::ifstream in(file);
  double value = 0;
  for (std::string word; in >> word;) {
    if (word == name && in >> value) return value;
  }
  return value;
}

Holds holds_now() {
  Holds now;
  const std::string folder = "/proc/self/fd";
  DIR* open = opendir(folder.c_str());
  while (const dirent* entry = readdir(open)) {
    char target[64] = {};
    if (readlink((folder + "/" + entry->d_name).c_str(), target, sizeof(target) - 1) < 0) continue;
    now.sockets += std::string(target).starts_with("socket:") ? 1 : 0;
  }
  closedir(open);
  now.kilobytes = field("/proc/self/smaps_rollup", "Private_Dirty:");
  now.threads = field("/proc/self/status", "Threads:");
  return now;
}

/// Creates group number `number` of all ranks.
using MakeGroup = std::function<BackendPtr(int number)>;

MakeGroup gloo_groups(int rank, int size, int port) {
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<uint16_t>(port);
  tcp.isServer = rank == 0;
  tcp.numWorkers = size;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", tcp);
  return [=](int number) {
    comm::GlooOptions options;
    options.store = c10::make_intrusive<c10d::PrefixStore>(std::to_string(number), store);
    options.index = rank;
    options.size = size;
    options.timeout = kTimeout;
    options.address = "127.0.0.1";
    options.matched = false;
    return comm::make_gloo_backend(options);
  };
}

/// A group is identified by its ranks and their order, so each number uses another order.
MakeGroup tessera_groups(int rank, int size, int port) {
  comm::ProcessWorldOptions options;
  options.rank = rank;
  options.size = size;
  options.host = "127.0.0.1";
  options.port = port;
  options.timeout = kTimeout;
  const auto world = comm::make_process_world(options);
  return [=](int number) {
    std::vector<int> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    std::ranges::rotate(ranks, ranks.begin() + number % size);
    const auto group = world->group(ranks);
    return BackendPtr::unsafe_reclaim_from_nonowning(&group->backend(c10::DeviceType::CPU));
  };
}

/// The median time of `repeats` calls, in microseconds.
double call_time(int repeats, const std::function<void()>& call) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(1000 * millis(call));
  std::ranges::sort(times);
  return times[times.size() / 2];
}

std::vector<double> measure(const std::function<MakeGroup()>& meet, int size) {
  MakeGroup make;
  const double start = millis([&] { make = meet(); });
  BackendPtr group;
  const double first = millis([&] { group = make(0); });
  const auto before = holds_now();
  std::vector<BackendPtr> kept;
  const double more = millis([&] {
    for (int number = 1; number <= kGroups; ++number) kept.push_back(make(number));
  });
  const auto after = holds_now();
  std::vector<at::Tensor> small = {at::ones({1})};
  std::vector<at::Tensor> large = {at::ones({1 << 18})};
  at::Tensor part = at::ones({1 << 14});
  at::Tensor all = at::empty({int64_t{1 << 14} * size});
  const auto reduce = [&](std::vector<at::Tensor>& tensors) {
    c10d::AllreduceOptions options;
    options.asyncOp = false;
    group->allreduce(tensors, options)->wait();
  };
  const int repeats = size > 32 ? 10 : 30;
  reduce(small);
  return {start,
          first,
          more / kGroups,
          (after.sockets - before.sockets) / kGroups,
          (after.threads - before.threads) / kGroups,
          (after.kilobytes - before.kilobytes) / kGroups,
          call_time(repeats, [&] { reduce(small); }),
          call_time(repeats, [&] { reduce(large); }),
          call_time(repeats, [&] { group->_allgather_base(all, part)->wait(); })};
}

void run_rank(bool ours, int rank, int size, int port) {
  at::set_num_threads(1);
  MakeGroup groups;
  const auto meet = [&] {
    return groups = ours ? tessera_groups(rank, size, port) : gloo_groups(rank, size, port);
  };
  const auto figures = measure(meet, size);
  std::vector<at::Tensor> largest = {at::empty({std::ssize(figures)}, at::kDouble)};
  std::ranges::copy(figures, largest[0].data_ptr<double>());
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  const auto group = groups(kGroups + 1);
  group->allreduce(largest, options)->wait();
  if (rank != 0) return;
  const double* of = largest[0].data_ptr<double>();
  std::printf(
      "| %5d | %-9s | %7.0f | %7.0f | %7.0f | %7.0f | %7.0f | %8.0f | %8.0f | %9.0f | %9.0f |\n",
      size, ours ? "tessera" : "gloo", of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7],
      of[8]);
}

/// Forked before libtorch starts any thread.
bool run(bool ours, int size, int port) {
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      int status = 0;
      try {
        run_rank(ours, rank, size, port);
      } catch (const std::exception& e) {
        std::fprintf(stderr, "rank %d of %d: %s\n", rank, size, e.what());
        status = 1;
      }
      std::fflush(stdout);
      _exit(status);
    }
    ranks.push_back(child);
  }
  bool ok = true;
  for (const pid_t rank : ranks) {
    int status = 0;
    ok = waitpid(rank, &status, 0) == rank && status == 0 && ok;
  }
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  std::printf(
      "Groups of processes on one machine (ms, count, KB; calls in us)\n\n"
      "| ranks | transport |   start |   first |   group | sockets | threads |   memory | reduce 1 "
      "| reduce 1M | gather64K |\n"
      "|-------|-----------|---------|---------|---------|---------|---------|----------|----------"
      "|-----------|-----------|\n");
  std::fflush(stdout);
  std::vector<int> sizes = {4, 16, 64};
  if (argc > 1) sizes = {std::atoi(argv[1])};
  int port = 20000 + getpid() % 20000;
  bool ok = true;
  for (const int size : sizes) {
    for (const bool ours : {false, true}) ok = run(ours, size, port++) && ok;
  }
  return ok ? 0 : 1;
}
