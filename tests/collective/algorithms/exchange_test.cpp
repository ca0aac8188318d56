// The collectives that are made of messages, between processes: small ones in one trip, large ones
// in chunks; synchronous and not; in place and into another tensor. Bit for bit.
#include "tessera/collective/algorithms/exchange.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tessera/base/errors.h"
#include "tessera/collective/algorithms/out_of_place_all_reduce.h"
#include "tessera/collective/algorithms/pipelined_pack.h"
#include "tessera/comm/processes.h"
#include "tests/comm/process_links.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace exchange_test {

using testing::error_of;
using testing::failures;
using testing::run_processes;
using testing::Scenario;

/// What rank `rank` brings: any floats, so that the order of a sum shows in its last bits.
at::Tensor addends(int rank, int64_t n) {
  return at::arange(n, at::kFloat).add_(1 + rank).mul_(0.1F).sin_().mul_(1 + rank);
}

at::Tensor sum_in_order(int size, int64_t n) {
  at::Tensor sum = addends(0, n);
  for (int rank = 1; rank < size; ++rank) sum.add_(addends(rank, n));
  return sum;
}

template <typename Options>
Options with(bool async) {
  Options options;
  options.asyncOp = async;
  return options;
}

/// One element, uneven parts, the edge of one trip, several chunks that end in the middle.
constexpr int64_t kSizes[] = {0, 1, 2, 5, 1000, 32768, 40001, (2 << 20) + 13};

void expect_bits(const at::Tensor& found, const at::Tensor& expected, const char* what) {
  EXPECT_TRUE(at::equal(found, expected)) << what << " of " << expected.numel();
}

const Scenario kAllReduce("all_reduce", [] {
  auto world = process_world();
  c10d::Backend& links = links_of(*world);
  for (const int64_t n : kSizes) {
    const at::Tensor expected = sum_in_order(world->size(), n);
    for (const bool async : {false, true}) {
      const auto options = with<c10d::AllreduceOptions>(async);
      Tensors in_place = {addends(world->rank(), n)};
      links.allreduce(in_place, options)->wait();
      expect_bits(in_place[0], expected, "all_reduce");

      at::Tensor in = addends(world->rank(), n);
      at::Tensor out = at::full({n}, -1, at::kFloat);
      all_reduce_into(links, out, in, options)->wait();
      expect_bits(out, expected, "all_reduce_into");
      expect_bits(in, addends(world->rank(), n), "the input");
    }
  }
});

const Scenario kReduceScatter("reduce_scatter", [] {
  auto world = process_world();
  c10d::Backend& links = links_of(*world);
  for (const int64_t n : kSizes) {
    const int64_t each = n / world->size();
    at::Tensor in = addends(world->rank(), each * world->size());
    const at::Tensor expected =
        sum_in_order(world->size(), each * world->size()).narrow(0, each * world->rank(), each);
    for (const bool async : {false, true}) {
      at::Tensor out = at::full({each}, -1, at::kFloat);
      links._reduce_scatter_base(out, in, with<c10d::ReduceScatterOptions>(async))->wait();
      expect_bits(out, expected, "reduce_scatter");
    }
  }
});

const Scenario kGather("gather", [] {
  auto world = process_world();
  c10d::Backend& links = links_of(*world);
  Tensors parts;
  for (int rank = 0; rank < world->size(); ++rank) parts.push_back(addends(rank, 70001));
  for (const bool async : {false, true}) {
    at::Tensor in = parts[static_cast<size_t>(world->rank())].clone();
    at::Tensor out = at::zeros({70001 * world->size()});
    links._allgather_base(out, in, with<c10d::AllgatherOptions>(async))->wait();
    expect_bits(out, at::cat(parts), "all_gather");
  }
});

/// Pieces of several chunks and of none; the even ranks pack theirs as they are sent, the odd ones
/// have them in a buffer.
const Scenario kPacking("packing", [] {
  auto world = process_world();
  c10d::Backend& links = links_of(*world);
  const int size = world->size();
  const auto count = [](int from, int to) { return int64_t{(from + 2 * to) % 4} * 200'001; };
  const auto piece = [&](int from, int to) {
    return at::arange(count(from, to), at::kFloat).add_(1000 * from + to);
  };
  for (int repeat = 0; repeat < 2; ++repeat) {
    Tensors give, take;
    std::vector<int64_t> give_splits, take_splits;
    for (int peer = 0; peer < size; ++peer) {
      give.push_back(piece(world->rank(), peer));
      take.push_back(piece(peer, world->rank()));
      give_splits.push_back(give.back().numel());
      take_splits.push_back(take.back().numel());
    }
    const at::Tensor expected = at::cat(take);
    at::Tensor in = at::cat(give);
    at::Tensor out = at::full({expected.numel()}, -1, at::kFloat);
    const auto options = with<c10d::AllToAllOptions>(false);
    if (world->rank() % 2 != 0) {
      links.alltoall_base(out, in, take_splits, give_splits, options)->wait();
    } else {
      int64_t packed = 0;
      int64_t packed_before = -1;
      Unpacked unpacked;
      unpacked.pack = [&](int64_t begin, int64_t bytes, char* to) {
        std::memcpy(to, static_cast<const char*>(in.const_data_ptr()) + begin, size_t(bytes));
        packed += bytes;
      };
      unpacked.splits = give_splits;
      unpacked.meanwhile = [&] { packed_before = packed; };
      all_to_all_packing(links, out, std::move(unpacked), take_splits, options)->wait();
      EXPECT_EQ(packed, static_cast<int64_t>(in.nbytes()));  // all of it, once
      EXPECT_EQ(packed_before, packed);
    }
    expect_bits(out, expected, "all_to_all");
  }
});

/// Several tensors in one call, each as if alone; two such calls under way at a time.
const Scenario kCoalesced("coalesced", [] {
  auto world = process_world();
  c10d::Backend& links = links_of(*world);
  for (const bool async : {false, true}) {
    Tensors parts, gathered, whole, scattered, gathered_sum, scattered_sum;
    for (const int64_t n : kSizes) {
      parts.push_back(addends(world->rank(), n));
      gathered.push_back(at::full({n * world->size()}, -1, at::kFloat));
      Tensors all;
      for (int rank = 0; rank < world->size(); ++rank) all.push_back(addends(rank, n));
      gathered_sum.push_back(at::cat(all));
      whole.push_back(addends(world->rank(), n * world->size()));
      scattered.push_back(at::full({n}, -1, at::kFloat));
      scattered_sum.push_back(
          sum_in_order(world->size(), n * world->size()).narrow(0, n * world->rank(), n));
    }
    parts.push_back(at::full({3}, world->rank(), at::kLong));  // of another type
    gathered.push_back(at::full({3 * world->size()}, -1, at::kLong));
    gathered_sum.push_back(at::arange(world->size(), at::kLong).repeat_interleave(3));
    const auto gather =
        links.allgather_into_tensor_coalesced(gathered, parts, with<c10d::AllgatherOptions>(async));
    const auto reduce = links.reduce_scatter_tensor_coalesced(
        scattered, whole, with<c10d::ReduceScatterOptions>(async));
    gather->wait();
    reduce->wait();
    for (size_t i = 0; i < gathered.size(); ++i) {
      expect_bits(gathered[i], gathered_sum[i], "coalesced all_gather");
    }
    for (size_t i = 0; i < scattered.size(); ++i) {
      expect_bits(scattered[i], scattered_sum[i], "coalesced reduce_scatter");
    }
  }
});

/// Calls that end at the same time on both worker threads. c10d keeps the name of the call that
/// ended last in a string that its workers assign without a lock.
const Scenario kManyAtOnce("many at once", [] {
  auto world = process_world();
  c10d::Backend& links = links_of(*world);
  const auto options = with<c10d::ReduceScatterOptions>(true);
  const auto options_of_gather = with<c10d::AllgatherOptions>(true);
  constexpr size_t kAtOnce = 8;
  at::Tensor part = at::ones({1});
  at::Tensor whole = at::ones({world->size()});
  Tensors sums(kAtOnce), gathered(kAtOnce);
  for (auto& sum : sums) sum = at::zeros({1});
  for (auto& all : gathered) all = at::zeros({world->size()});
  for (int i = 0; i < 1500; ++i) {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (size_t k = 0; k < kAtOnce; ++k) {
      works.push_back(links._reduce_scatter_base(sums[k], whole, options));
      Tensors outputs = {gathered[k]};
      Tensors inputs = {part};
      works.push_back(links.allgather_into_tensor_coalesced(outputs, inputs, options_of_gather));
    }
    for (const auto& work : works) work->wait();
  }
  for (const auto& sum : sums) EXPECT_EQ(sum.item<float>(), static_cast<float>(world->size()));
});

/// A Work that no thread waits for still does its part; a future waits by itself.
const Scenario kUnwaited("unwaited", [] {
  auto world = process_world();
  c10d::Backend& links = links_of(*world);
  const auto synchronous = with<c10d::AllreduceOptions>(false);
  Tensors dropped = {at::ones({100000})};
  links.allreduce(dropped, synchronous);
  expect_bits(dropped[0], at::full({100000}, world->size(), at::kFloat), "a dropped call");
  Tensors asked = {at::ones({10})};
  const auto work = links.allreduce(asked, synchronous);
  const auto future = work->getFuture();
  future->waitAndThrow();
  EXPECT_EQ(future->value().toTensorVector()[0].sum().item<float>(),
            10.0F * static_cast<float>(world->size()));
  EXPECT_TRUE(work->isCompleted());
  EXPECT_TRUE(work->wait());
});

/// Rank 1 comes late, so that the others look around in the middle of their wait and go on waiting.
const Scenario kLate("late", [] {
  auto world = process_world();
  all_reduce(*world);
  if (world->rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
  Tensors t = {at::ones({300000})};
  links_of(*world).allreduce(t, with<c10d::AllreduceOptions>(false))->wait();
  expect_bits(t[0], at::full({300000}, world->size(), at::kFloat), "a late call");
});

/// While the links wait for rank 1, which calls something else.
const Scenario kDifferent("different", [] {
  auto world = process_world();
  c10d::Backend& links = links_of(*world);
  all_reduce(*world);
  const std::string error = error_of([&] {
    at::Tensor in = at::ones({4});
    at::Tensor out = at::ones({4 * world->size()});
    Tensors t = {in};
    if (world->rank() == 1) {
      links._allgather_base(out, in, with<c10d::AllgatherOptions>(false))->wait();
    } else {
      links.allreduce(t, with<c10d::AllreduceOptions>(false))->wait();
    }
  });
  EXPECT_NE(error.find("all_reduce (sum) of 4 float32"), std::string::npos) << error;
  EXPECT_NE(error.find("all_gather_into_tensor of 4 -> 12 float32"), std::string::npos) << error;
});

class Exchanges : public ::testing::TestWithParam<int> {};

TEST_P(Exchanges, AllReduceAddsInTheOrderOfRanks) {
  EXPECT_EQ(failures(run_processes(kAllReduce, {.size = GetParam()})), "");
}

TEST_P(Exchanges, ReduceScatterAddsInTheOrderOfRanks) {
  EXPECT_EQ(failures(run_processes(kReduceScatter, {.size = GetParam()})), "");
}

TEST_P(Exchanges, AllGatherPutsEachPartInItsPlace) {
  EXPECT_EQ(failures(run_processes(kGather, {.size = GetParam()})), "");
}

TEST_P(Exchanges, CoalescedCallsTreatEachTensorAlone) {
  EXPECT_EQ(failures(run_processes(kCoalesced, {.size = GetParam()})), "");
}

TEST_P(Exchanges, AllToAllPacksOnTheWayWithoutItsPeersKnowing) {
  EXPECT_EQ(failures(run_processes(kPacking, {.size = GetParam()})), "");
}

INSTANTIATE_TEST_SUITE_P(Sizes, Exchanges, ::testing::Values(2, 3, 4));

/// Where an interface is named, Gloo alone knows its address, and carries the messages.
TEST(Exchanges, TheSameHoldsOverGloosOwnLinks) {
  for (const Scenario& scenario : {kAllReduce, kCoalesced}) {
    EXPECT_EQ(failures(run_processes(scenario,
                                     {.size = 3, .environment = {{"GLOO_SOCKET_IFNAME", "lo"}}})),
              "");
  }
}

TEST(Exchanges, CallsThatEndAtTheSameTimeDoNotCorruptTheHeap) {
  EXPECT_EQ(failures(run_processes(kManyAtOnce, {.size = 2})), "");
}

TEST(Exchanges, ASynchronousCallNeedsNoWait) {
  EXPECT_EQ(failures(run_processes(kUnwaited, {.size = 3})), "");
}

TEST(Exchanges, ASynchronousCallWaitsForALateRank) {
  EXPECT_EQ(
      failures(run_processes(kLate, {.size = 3, .environment = {{"TESSERA_TIMEOUT_S", "8"}}})), "");
}

TEST(Exchanges, ASynchronousCallFindsOutThatAPeerCallsSomethingElse) {
  EXPECT_EQ(
      failures(run_processes(kDifferent, {.size = 3, .environment = {{"TESSERA_TIMEOUT_S", "8"}}})),
      "");
}

}  // namespace exchange_test
}  // namespace tessera::comm
