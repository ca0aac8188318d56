// Ranks as real processes over Gloo: every collective, subgroups, several worlds, a clean end.
#include "tessera/comm/processes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tests/comm/process_links.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace processes_test {

using testing::failures;
using testing::run_processes;
using testing::Scenario;

at::Tensor row(double value, int64_t n) { return at::full({n}, value, at::kDouble); }

void expect_equal(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_TRUE(at::equal(found, expected)) << found << "\nexpected\n" << expected;
}

const Scenario kCollectives("collectives", [] {
  auto world = process_world();
  const int n = world->size();
  const int me = world->rank();
  c10d::Backend& links = links_of(*world);
  const double sum = n * (n + 1) / 2.0;

  Tensors reduced = {row(me + 1, 5)};
  links.allreduce(reduced)->wait();
  expect_equal(reduced[0], row(sum, 5));

  Tensors largest = {row(me, 3)};
  c10d::AllreduceOptions max;
  max.reduceOp = c10d::ReduceOp::MAX;
  links.allreduce(largest, max)->wait();
  expect_equal(largest[0], row(n - 1, 3));

  auto mine = row(me, 2);
  auto gathered = at::empty({2 * n}, at::kDouble);
  links._allgather_base(gathered, mine)->wait();
  expect_equal(gathered, at::arange(n, at::kDouble).repeat_interleave(2));

  auto whole = at::arange(2 * n, at::kDouble);
  auto part = at::empty({2}, at::kDouble);
  links._reduce_scatter_base(part, whole)->wait();
  expect_equal(part, at::arange(2 * me, 2 * me + 2, at::kDouble) * n);

  Tensors word = {row(me == 1 ? 7 : 0, 4)};
  c10d::BroadcastOptions from_one;
  from_one.rootRank = 1;
  links.broadcast(word, from_one)->wait();
  expect_equal(word[0], row(7, 4));

  Tensors to_root = {row(me + 1, 2)};
  links.reduce(to_root)->wait();
  if (me == 0) expect_equal(to_root[0], row(sum, 2));

  Tensors one = {row(me, 2)};
  std::vector<Tensors> all;
  if (me == 0) {
    all.emplace_back();
    for (int i = 0; i < n; ++i) all[0].push_back(at::empty({2}, at::kDouble));
  }
  links.gather(all, one)->wait();
  for (int i = 0; me == 0 && i < n; ++i) expect_equal(all[0][static_cast<size_t>(i)], row(i, 2));

  Tensors received = {at::empty({2}, at::kDouble)};
  std::vector<Tensors> parts;
  if (me == 0) {
    parts.emplace_back();
    for (int i = 0; i < n; ++i) parts[0].push_back(row(10 + i, 2));
  }
  links.scatter(received, parts)->wait();
  expect_equal(received[0], row(10 + me, 2));

  links.barrier()->wait();
});

/// Rank i gives i + j + 1 rows to rank j (and none where that is even): uneven and empty pieces.
const Scenario kAllToAll("all_to_all", [] {
  auto world = process_world();
  const int n = world->size();
  const int me = world->rank();
  c10d::Backend& links = links_of(*world);
  const auto rows = [](int a, int b) -> int64_t { return (a + b) % 2 == 0 ? a + b + 1 : 0; };
  const auto value = [](int from, int to) { return 100.0 * from + to; };
  std::vector<int64_t> splits_in;
  std::vector<int64_t> splits_out;
  Tensors inputs;
  Tensors expected;
  for (int other = 0; other < n; ++other) {
    splits_in.push_back(rows(me, other));
    splits_out.push_back(rows(other, me));
    inputs.push_back(at::full({rows(me, other), 3}, value(me, other), at::kDouble));
    expected.push_back(at::full({rows(other, me), 3}, value(other, me), at::kDouble));
  }
  auto input = at::cat(inputs);
  auto output = at::zeros_like(at::cat(expected));
  links.alltoall_base(output, input, splits_out, splits_in)->wait();
  expect_equal(output, at::cat(expected));

  Tensors outputs;
  for (const auto& t : expected) outputs.push_back(at::zeros_like(t));
  links.alltoall(outputs, inputs)->wait();
  for (size_t i = 0; i < outputs.size(); ++i) expect_equal(outputs[i], expected[i]);

  auto even_in = at::arange(2 * n, at::kLong) + 100 * me;
  auto even_out = at::zeros({2 * n}, at::kLong);
  std::vector<int64_t> no_splits;
  links.alltoall_base(even_out, even_in, no_splits, no_splits)->wait();
  for (int i = 0; i < n; ++i) {
    EXPECT_EQ(even_out[2 * i].item<int64_t>(), 100 * i + 2 * me);
    EXPECT_EQ(even_out[2 * i + 1].item<int64_t>(), 100 * i + 2 * me + 1);
  }
});

const Scenario kRing("ring", [] {
  auto world = process_world();
  const int n = world->size();
  const int me = world->rank();
  c10d::Backend& links = links_of(*world);
  for (const int tag : {0, 7, 5000}) {
    Tensors out = {row(me, 1000)};
    Tensors in = {row(-1, 1000)};
    auto receiving = links.recv(in, (me + n - 1) % n, tag);
    auto sending = links.send(out, (me + 1) % n, tag);
    receiving->wait();
    sending->wait();
    expect_equal(in[0], row((me + n - 1) % n, 1000));
  }
});

/// Many collectives at once must not take each other's messages.
const Scenario kAsync("async", [] {
  auto world = process_world();
  c10d::Backend& links = links_of(*world);
  std::vector<Tensors> tensors;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (int i = 0; i < 100; ++i) tensors.push_back({row(i, 64)});
  for (auto& t : tensors) works.push_back(links.allreduce(t));
  for (size_t i = 0; i < works.size(); ++i) {
    works[i]->wait();
    EXPECT_TRUE(works[i]->isCompleted());
    expect_equal(tensors[i][0], row(static_cast<double>(i) * world->size(), 64));
  }
});

const Scenario kMesh("mesh", [] {
  auto world = process_world();
  const auto mesh = init_device_mesh("dp=2,tp=2", world);
  const auto tp = group_of(mesh, "tp");
  const auto dp = group_of(mesh, "dp");
  Tensors t = {row(world->rank(), 1)};
  tp->backend(c10::DeviceType::CPU).allreduce(t)->wait();
  dp->backend(c10::DeviceType::CPU).allreduce(t)->wait();
  expect_equal(t[0], row(6, 1));
});

/// c10d's own entry, which `_c10d_functional` ops and user code take.
const Scenario kProcessGroup("process_group", [] {
  auto world = process_world();
  const auto group = world->group(everyone(*world));
  Tensors t = {row(1, 3)};
  group->process_group()->allreduce(t)->wait();
  expect_equal(t[0], row(world->size(), 3));
  group->process_group()->barrier()->wait();
});

/// Two worlds over one store that the program made by itself.
const Scenario kOwnStore("own_store", [] {
  const int rank = std::stoi(std::getenv("RANK"));
  auto store = own_store(rank == 0);
  const auto options = [&](const char* name) {
    return ProcessWorldOptions{.rank = rank, .size = 2, .store = store, .name = name};
  };
  auto first = make_process_world(options("first"));
  auto second = make_process_world(options("second"));
  for (auto* world : {first.get(), second.get()}) {
    Tensors t = {row(rank, 1)};
    links_of(*world).allreduce(t)->wait();
    expect_equal(t[0], row(1, 1));
  }
});

/// Rank 0, which hosts the store, is done long before the others; the others must not notice.
const Scenario kUnevenEnd("uneven_end", [] {
  auto world = process_world();
  Tensors t = {row(1, 1)};
  links_of(*world).allreduce(t)->wait();
  if (world->rank() > 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  if (world->rank() > 0) world->group(std::vector<int>{1, 2});
});

class Processes : public ::testing::TestWithParam<int> {};

TEST_P(Processes, EveryCollectiveIsRight) {
  EXPECT_EQ(failures(run_processes(kCollectives, {.size = GetParam()})), "");
}

TEST_P(Processes, AllToAllTakesUnevenAndEmptyPieces) {
  EXPECT_EQ(failures(run_processes(kAllToAll, {.size = GetParam()})), "");
}

TEST_P(Processes, SendAndRecvFormARing) {
  EXPECT_EQ(failures(run_processes(kRing, {.size = GetParam()})), "");
}

INSTANTIATE_TEST_SUITE_P(Sizes, Processes, ::testing::Values(2, 3, 4));

TEST(Processes, AHundredCollectivesMayBeInFlight) {
  EXPECT_EQ(failures(run_processes(kAsync, {.size = 2})), "");
}

TEST(Processes, AMeshHasGroupsAlongItsAxes) {
  EXPECT_EQ(failures(run_processes(kMesh, {.size = 4})), "");
}

TEST(Processes, TheProcessGroupReachesTheSameLinks) {
  EXPECT_EQ(failures(run_processes(kProcessGroup, {.size = 2})), "");
}

TEST(Processes, TwoWorldsMayShareAGivenStore) {
  EXPECT_EQ(failures(run_processes(kOwnStore, {.size = 2})), "");
}

TEST(Processes, TheStoreOutlivesARankZeroThatIsDoneFirst) {
  EXPECT_EQ(failures(run_processes(kUnevenEnd, {.size = 3})), "");
}

TEST(Processes, WithoutVariablesThereIsOneRankThatNeedsNoNetwork) {
  auto world = make_process_world({});
  EXPECT_EQ(world->size(), 1);
  Tensors t = {row(3, 2)};
  world->group(std::vector<int>{0})->backend(c10::DeviceType::CPU).allreduce(t)->wait();
  expect_equal(t[0], row(3, 2));
}

TEST(Processes, BadOptionsAreTheCallersMistake) {
  EXPECT_THROW(make_process_world({.rank = 2, .size = 2}), InvalidArgument);
  EXPECT_THROW(make_process_world({.rank = 0, .size = 2}), InvalidArgument);
  EXPECT_THROW(make_process_world({.rank = 0, .size = 2, .host = "localhost", .port = 70000}),
               InvalidArgument);
}

}  // namespace processes_test
}  // namespace tessera::comm
