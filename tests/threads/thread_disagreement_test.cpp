// Calls of thread ranks that do not fit together, or have no meaning, end in an exception on every
// rank that says who gave what.
#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tests/comm/rank_data.h"
#include "tests/support_pure/expect_error.h"

namespace tessera {
namespace thread_disagreement_test {

using c10d::ReduceOp;
using comm::run_ranks;
using test::everyone;
using test::expect_error;
using test::Tensors;

/// Runs `call(rank, backend)` on three ranks; all of them must get a PeerError with these parts.
/// Afterwards the same group works again.
template <typename F>
void expect_disagreement(const F& call, std::initializer_list<std::string_view> parts,
                         std::source_location where = std::source_location::current()) {
  run_ranks(3, [&](int rank) {
    auto& backend = everyone(3)->backend(at::kCPU);
    expect_error<PeerError>([&] { call(rank, backend)->wait(); }, parts, where);
    Tensors t = {at::ones({1})};
    backend.allreduce(t)->wait();
    EXPECT_EQ(t[0].item<float>(), 3.0F);
  });
}

TEST(ThreadDisagreement, AnotherOpOnOneRank) {
  Tensors t[3] = {{at::ones({2})}, {at::ones({2})}, {at::ones({2})}};
  expect_disagreement(
      [&](int rank, c10d::Backend& backend) {
        return rank == 1 ? backend.broadcast(t[rank]) : backend.allreduce(t[rank]);
      },
      {"#0 on group [0-2]", "rank 1 called broadcast", "called all_reduce"});
}

TEST(ThreadDisagreement, AnotherShapeOnOneRank) {
  Tensors t[3] = {{at::ones({2, 3})}, {at::ones({2, 3})}, {at::ones({3, 2})}};
  expect_disagreement([&](int rank, c10d::Backend& backend) { return backend.allreduce(t[rank]); },
                      {"all_reduce #0 on group [0-2]", "rank 2 gave 3x2 Float", "gave 2x3 Float"});
}

TEST(ThreadDisagreement, AnotherDtypeOnOneRank) {
  Tensors t[3] = {{at::ones({2})}, {at::ones({2}, at::kHalf)}, {at::ones({2})}};
  expect_disagreement([&](int rank, c10d::Backend& backend) { return backend.allreduce(t[rank]); },
                      {"all_reduce", "rank 1 gave 2 Half", "gave 2 Float"});
}

TEST(ThreadDisagreement, AnotherReduceOpOnOneRank) {
  Tensors t[3] = {{at::ones({2})}, {at::ones({2})}, {at::ones({2})}};
  expect_disagreement(
      [&](int rank, c10d::Backend& backend) {
        return backend.allreduce(t[rank], {.reduceOp = rank == 0 ? ReduceOp::MAX : ReduceOp::SUM});
      },
      {"all_reduce", "rank 0", "max", "sum"});
}

TEST(ThreadDisagreement, AnotherRootOnOneRank) {
  Tensors t[3] = {{at::ones({2})}, {at::ones({2})}, {at::ones({2})}};
  expect_disagreement(
      [&](int rank, c10d::Backend& backend) {
        return backend.broadcast(t[rank], {.rootRank = rank == 2 ? 1 : 0});
      },
      {"broadcast", "rank 2", "root", "1", "0"});
}

TEST(ThreadDisagreement, SplitTablesThatDoNotFit) {
  at::Tensor in[3];
  at::Tensor out[3];
  for (auto& t : in) t = at::ones({3});
  for (auto& t : out) t = at::ones({3});
  expect_disagreement(
      [&](int rank, c10d::Backend& backend) {
        std::vector<int64_t> input_splits = {1, 1, 1};
        std::vector<int64_t> output_splits = {1, 1, 1};
        if (rank == 1) input_splits = {0, 1, 2};
        return backend.alltoall_base(out[rank], in[rank], output_splits, input_splits);
      },
      {"all_to_all_single", "rank 1 gives 0 elements to rank 0", "expects 1"});
}

TEST(ThreadDisagreement, ListsThatDoNotFit) {
  Tensors in[3];
  std::vector<Tensors> out[3];
  for (int r = 0; r < 3; ++r) {
    in[r] = {at::ones({r + 1})};
    out[r] = {{at::ones({1}), at::ones({2}), at::ones({r == 0 ? 4 : 3})}};
  }
  expect_disagreement(
      [&](int rank, c10d::Backend& backend) { return backend.allgather(out[rank], in[rank]); },
      {"all_gather", "rank 2 gives 3 elements to rank 0", "expects 4"});
}

TEST(ThreadDisagreement, AnotherNumberOfCoalescedTensorsOnOneRank) {
  Tensors t[3] = {{at::ones({2})}, {at::ones({2}), at::ones({1})}, {at::ones({2})}};
  expect_disagreement(
      [&](int rank, c10d::Backend& backend) { return backend.allreduce_coalesced(t[rank], {}); },
      {"rank 1 gave 2 tensors", "gave 1 tensors"});
}

TEST(ThreadDisagreement, AWrongCallOfOneRankIsToldToAll) {
  run_ranks(3, [](int rank) {
    auto& backend = everyone(3)->backend(at::kCPU);
    at::Tensor in = at::ones({2});
    at::Tensor out = at::ones({rank == 1 ? 5 : 6});
    expect_error<InvalidArgument>([&] { backend._allgather_base(out, in)->wait(); },
                                  {"all_gather_into_tensor #0", "rank 1", "5 Float", "3 times"});
    std::vector<int64_t> splits = {1, 1, rank == 2 ? 7 : 1};
    at::Tensor rows = at::ones({3});
    expect_error<InvalidArgument>(
        [&] { backend.alltoall_base(rows, rows, splits, splits)->wait(); },
        {"all_to_all_single #1", "rank 2", "1,1,7"});
  });
}

TEST(ThreadDisagreement, CallsWithoutMeaningAreRefused) {
  run_ranks(2, [](int) {
    auto& backend = everyone(2)->backend(at::kCPU);
    Tensors floats = {at::ones({2})};
    Tensors complex = {at::ones({2}, at::kComplexFloat)};
    Tensors bools = {at::ones({2}, at::kBool)};
    const auto reduce = [&](Tensors& t, ReduceOp::RedOpType op) {
      return [&backend, &t, op] { backend.allreduce(t, {.reduceOp = op})->wait(); };
    };
    expect_error<InvalidArgument>(reduce(floats, ReduceOp::BXOR), {"bxor of Float"});
    expect_error<InvalidArgument>(reduce(complex, ReduceOp::MAX), {"max of ComplexFloat"});
    expect_error<InvalidArgument>(reduce(bools, ReduceOp::AVG), {"avg of Bool"});
    expect_error<InvalidArgument>([&] { backend.broadcast(floats, {.rootRank = 2})->wait(); },
                                  {"root 2", "group of 2"});
    at::Tensor strided = at::ones({8}).slice(0, 0, 8, 2);
    at::Tensor half = at::ones({2});
    expect_error<InvalidArgument>([&] { backend._allgather_base(strided, half)->wait(); },
                                  {"output of 4 Float must be contiguous"});
    Tensors two = {half, half};
    expect_error<InvalidArgument>([&] { backend.allreduce(two)->wait(); }, {"2 tensors"});
  });
}

TEST(ThreadDisagreement, MessagesThatDoNotFit) {
  run_ranks(2, [](int rank) {
    auto& backend = everyone(2)->backend(at::kCPU);
    Tensors t = {at::ones({rank == 0 ? 2 : 3})};
    expect_error<PeerError>(
        [&] { (rank == 0 ? backend.send(t, 1, 4) : backend.recv(t, 0, 4))->wait(); },
        {"send to rank 1 with tag 4", "rank 0 sends 2 elements", "rank 1 expects 3"});
    expect_error<InvalidArgument>([&] { backend.send(t, rank, 0)->wait(); }, {"peer"});
  });
}

}  // namespace thread_disagreement_test
}  // namespace tessera
