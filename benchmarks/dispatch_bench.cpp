// The overhead of a sharded tensor over the plain op on its local part: runs the same op on both
// alternately, on one rank of a fake world, without communication.
//
//   dispatch_bench               the tables
//   dispatch_bench count         runs each op a few times for callgrind (count_instructions.sh)
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#endif

#include "benchmarks/recycling_allocator.h"
#include "tessera/comm/fake.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dispatch/caches.h"
#include "tessera/dtensor/dtensor.h"

namespace {

using namespace tessera;
using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<int64_t>(values.size() / 2));
  return values[values.size() / 2];
}

/// Microseconds per call, of the fastest batches: without interruptions by other processes.
double once(const std::function<void()>& run, int batch) {
  const auto start = Clock::now();
  for (int i = 0; i < batch; ++i) run();
  return microseconds(Clock::now() - start) / batch;
}

struct Pair {
  double plain;
  double sharded;
};

Pair side_by_side(const std::function<void()>& plain, const std::function<void()>& sharded) {
  constexpr int kBatch = 200;
  constexpr int kRepeats = 41;
  std::vector<double> a;
  std::vector<double> b;
  for (int i = 0; i < kRepeats; ++i) {
    a.push_back(once(plain, kBatch));
    b.push_back(once(sharded, kBatch));
  }
  return {median(a), median(b)};
}

/// The tensors an op works on, plain or sharded.
struct Inputs {
  at::Tensor x;
  at::Tensor w;
  at::Tensor bias;
  at::Tensor rows;
  at::Tensor sums;  ///< Partial if sharded
};

struct Op {
  const char* name;
  std::function<void(Inputs&)> run;
};

std::vector<Op> ops() {
  return {
      {"add", [](Inputs& in) { at::add(in.x, in.x); }},
      {"mm", [](Inputs& in) { at::mm(in.x, in.w); }},
      {"t", [](Inputs& in) { in.x.t(); }},
      {"view",
       [](Inputs& in) {
         in.x.view({in.x.size(0), 2, in.x.size(1) / 2});
       }},
      {"addmm", [](Inputs& in) { at::addmm(in.bias, in.x, in.w); }},
      {"sum", [](Inputs& in) { at::sum(in.x); }},
      {"layer_norm", [](Inputs& in) { at::layer_norm(in.x, {in.x.size(1)}); }},
      {"mul_", [](Inputs& in) { in.rows.mul_(1.0); }},
      {"detach", [](Inputs& in) { in.x.detach(); }},
      {"log_softmax", [](Inputs& in) { at::_log_softmax(in.x, 1, false); }},
      {"add_partial", [](Inputs& in) { at::add(in.sums, in.sums); }},
  };
}

std::string mesh_text(int axes, int64_t ranks = 2) {
  std::string out;
  for (int i = 0; i < axes; ++i) {
    out += (i > 0 ? "," : "") + std::string(1, static_cast<char>('a' + i)) + "=" +
           std::to_string(ranks);
  }
  return out;
}

DeviceMesh fake_mesh(const std::string& text) {
  const DeviceMesh mesh = DeviceMesh::parse(text);
  return mesh.in_world(comm::fake_world(0, mesh.size()));
}

/// Rows over the first axis.
std::vector<Placement> by_rows(int axes) {
  std::vector<Placement> out(static_cast<size_t>(axes));
  out[0] = Shard(0);
  return out;
}

at::Tensor replicated(const at::Tensor& plain, const DeviceMesh& mesh) {
  return from_local(plain, mesh, std::vector<Placement>(static_cast<size_t>(mesh.ndim())));
}

Inputs plain_inputs(bool grad) {
  Inputs in{at::randn({4, 8}), at::randn({8, 8}), at::randn({8}), at::randn({4, 8}),
            at::randn({4, 8})};
  if (grad) {
    for (at::Tensor* tensor : {&in.x, &in.w, &in.bias}) tensor->set_requires_grad(true);
  }
  return in;
}

Inputs sharded_inputs(int axes, bool grad) {
  const DeviceMesh mesh = fake_mesh(mesh_text(axes));
  const at::NoGradGuard no_grad;
  Inputs in{from_local(at::randn({4, 8}), mesh, by_rows(axes), {.even = true}),
            replicated(at::randn({8, 8}), mesh), replicated(at::randn({8}), mesh),
            from_local(at::randn({4, 8}), mesh, by_rows(axes), {.even = true}),
            from_local(at::randn({4, 8}), mesh,
                       std::vector<Placement>(static_cast<size_t>(axes), Partial()))};
  if (grad) {
    for (at::Tensor* tensor : {&in.x, &in.w, &in.bias}) tensor->set_requires_grad(true);
  }
  return in;
}

void warm() {
  std::printf("Warm: microseconds an op, float32 4x8 on each rank\n\n");
  std::printf("| op         | axes | autograd | plain |  sharded |  over |\n");
  std::printf("|------------|------|----------|-------|----------|-------|\n");
  for (const bool grad : {false, true}) {
    at::AutoGradMode mode(grad);
    for (const int axes : {1, 2, 3}) {
      Inputs plain = plain_inputs(grad);
      Inputs sharded = sharded_inputs(axes, grad);
      for (const Op& op : ops()) {
        const auto [a, b] = side_by_side([&] { op.run(plain); }, [&] { op.run(sharded); });
        std::printf("| %-10s | %4d | %-8s | %5.2f | %8.2f | %5.2f |\n", op.name, axes,
                    grad ? "on" : "off", a, b, b - a);
      }
    }
  }
}

void line(const char* what, double us) { std::printf("| %-52s | %10.2f |\n", what, us); }

double repeated(const std::function<void()>& run, int batch = 100, int repeats = 41) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(once(run, batch));
  return median(times);
}

/// With empty caches.
double cold(const std::function<void()>& run) {
  std::vector<double> times;
  for (int i = 0; i < 41; ++i) {
    clear_caches();
    times.push_back(once(run, 1));
  }
  return median(times);
}

void others() {
  const at::NoGradGuard no_grad;
  std::printf("\n| other                                                | us         |\n");
  std::printf("|------------------------------------------------------|------------|\n");
  const DeviceMesh one = fake_mesh("a=8");
  const at::Tensor local = at::randn({4, 8});
  line("from_local, even", repeated([&] { from_local(local, one, {Shard(0)}, {.even = true}); }));
  const at::Tensor x = from_local(local, one, {Shard(0)}, {.even = true});
  line("redistribute to the same sharding", repeated([&] { redistribute(x, {Shard(0)}); }));
  line("to_local", repeated([&] { to_local(x); }));
  for (const int ranks : {8, 1024}) {
    const DeviceMesh mesh = fake_mesh("a=" + std::to_string(ranks));
    const at::Tensor y = from_local(at::ones({1, 8}), mesh, {Shard(0)}, {.even = true});
    const std::string what = "redistribute S0 -> R, fake group of " + std::to_string(ranks);
    line(what.c_str(), repeated([&] { redistribute(y, {Replicate()}); }, 20));
    const std::string other = "redistribute S0 -> S1, fake group of " + std::to_string(ranks);
    const at::Tensor z = from_local(at::ones({1, ranks}), mesh, {Shard(0)}, {.even = true});
    line(other.c_str(), repeated([&] { redistribute(z, {Shard(1)}); }, 20));
  }
  for (const int axes : {1, 2, 3, 4}) {
    Inputs in = sharded_inputs(axes, false);
    line(("cold mm, " + std::to_string(axes) + " axes").c_str(), cold([&] { at::mm(in.x, in.w); }));
    line(("cold add, " + std::to_string(axes) + " axes").c_str(),
         cold([&] { at::add(in.x, in.x); }));
  }
  std::vector<at::Tensor> many(1000, x);
  line("stack of 1000 tensors, cold", cold([&] { at::stack(many); }));
  line("stack of 1000 tensors, warm", repeated([&] { at::stack(many); }, 1));
}

constexpr int kCounted = 200;

/// One dump per op: the cost of kCounted warm calls.
int count() {
#if __has_include(<valgrind/callgrind.h>)
  benchmarks::RecyclingAllocator::install();
  at::AutoGradMode mode(false);
  Inputs plain = plain_inputs(false);
  Inputs sharded = sharded_inputs(1, false);
  // All plain ops first: the first sharded view changes how libtorch records views on this thread,
  // plain ones included (dtensor/dispatch/view_replay.h).
  for (Inputs* in : {&plain, &sharded}) {
    for (const Op& op : ops()) {
      for (int i = 0; i < kCounted; ++i) op.run(*in);
      CALLGRIND_ZERO_STATS;
      for (int i = 0; i < kCounted; ++i) op.run(*in);
      const std::string what = std::string(in == &plain ? "plain:" : "sharded:") + op.name;
      CALLGRIND_DUMP_STATS_AT(what.c_str());
    }
  }
  return 0;
#else
  std::fprintf(stderr, "count: built without valgrind's headers\n");
  return 2;
#endif
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (argc == 2 && std::string(argv[1]) == "count") return count();
  warm();
  others();
}
