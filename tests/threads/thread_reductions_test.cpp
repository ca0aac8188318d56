// Reductions among thread ranks against what they are defined to be, for every op and dtype.
#include "tessera/comm/threads.h"
#include "tests/threads/reference.h"

namespace tessera {
namespace thread_reductions_test {

using c10d::ReduceOp;
using comm::run_ranks;
using test::data_of;
using test::everyone;
using test::for_each_case;
using test::has_meaning;
using test::of_all_ranks;
using test::reference;
using test::same;
using test::Tensors;

constexpr int kRanks = 4;

TEST(ThreadReductions, AllReduceFollowsItsDefinitionForEveryOpAndDtype) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    for_each_case([&](at::IntArrayRef shape, at::ScalarType dtype) {
      for (const auto op : {ReduceOp::SUM, ReduceOp::AVG, ReduceOp::PRODUCT, ReduceOp::MIN,
                            ReduceOp::MAX, ReduceOp::BAND, ReduceOp::BOR, ReduceOp::BXOR}) {
        if (!has_meaning(op, dtype)) continue;
        Tensors mine = {data_of(rank, shape, dtype)};
        backend.allreduce(mine, {.reduceOp = op})->wait();
        EXPECT_TRUE(same(mine[0], reference(op, of_all_ranks(kRanks, shape, dtype)))) << int(op);
      }
    });
  });
}

/// What c10d::makePreMulSum makes, which torch 2.11 calls otherwise.
template <typename Factor>
c10d::ReduceOp premul_sum(const Factor& factor) {
  c10d::ReduceOp op;
  op.op_ = c10d::ReduceOp::PREMUL_SUM;
  op.supplement_ = c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(factor);
  return op;
}

TEST(ThreadReductions, PremulSumScalesEachRankByItsFactor) {
  run_ranks(3, [](int rank) {
    auto& backend = everyone(3)->backend(at::kCPU);
    Tensors mine = {at::full({2}, rank + 1.0)};
    backend.allreduce(mine, {.reduceOp = premul_sum(0.5)})->wait();
    EXPECT_TRUE(same(mine[0], at::full({2}, 3.0)));
    mine = {at::full({2}, 1.0)};
    const at::Tensor factor = at::full({1}, rank + 1.0);
    backend.allreduce(mine, {.reduceOp = premul_sum(factor)})->wait();
    EXPECT_TRUE(same(mine[0], at::full({2}, 6.0)));
  });
}

TEST(ThreadReductions, LowPrecisionSumsRoundOnce) {
  // 1 + 63 times 1/256: bfloat16 cannot hold 1 + 1/256, so rounding at each step would give 1.
  run_ranks(64, [](int rank) {
    auto& backend = everyone(64)->backend(at::kCPU);
    Tensors mine = {at::full({3}, rank == 0 ? 1.0 : 1.0 / 256, at::kBFloat16)};
    backend.allreduce(mine)->wait();
    EXPECT_TRUE(same(mine[0], at::full({3}, 1.0 + 63.0 / 256, at::kBFloat16)));
  });
}

TEST(ThreadReductions, MinAndMaxPassNanOn) {
  run_ranks(3, [](int rank) {
    auto& backend = everyone(3)->backend(at::kCPU);
    for (const auto op : {ReduceOp::MIN, ReduceOp::MAX}) {
      Tensors mine = {at::full({2}, rank == 1 ? NAN : 1.0)};
      backend.allreduce(mine, {.reduceOp = op})->wait();
      EXPECT_TRUE(at::isnan(mine[0]).all().item<bool>());
    }
  });
}

TEST(ThreadReductions, AnAverageOfComplexNumbersIsThatOfTheirParts) {
  run_ranks(3, [](int rank) {
    auto& backend = everyone(3)->backend(at::kCPU);
    const at::Tensor real = at::tensor({1.0, 0.1 * rank, 7.0, INFINITY, 5.0});
    const at::Tensor imaginary = at::tensor({2.0, 0.7, -0.3 * rank, 1.0, -INFINITY});
    Tensors whole = {at::complex(real, imaginary)};
    Tensors parts = {at::stack({real, imaginary})};
    backend.allreduce(whole, {.reduceOp = ReduceOp::AVG})->wait();
    backend.allreduce(parts, {.reduceOp = ReduceOp::AVG})->wait();
    EXPECT_TRUE(same(whole[0], at::complex(parts[0][0], parts[0][1])));
  });
}

TEST(ThreadReductions, ReduceReachesTheRootAlone) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    for_each_case([&](at::IntArrayRef shape, at::ScalarType dtype) {
      for (int root = 0; root < kRanks; ++root) {
        Tensors mine = {data_of(rank, shape, dtype)};
        backend.reduce(mine, {.reduceOp = ReduceOp::SUM, .rootRank = root})->wait();
        const at::Tensor want = rank == root
                                    ? reference(ReduceOp::SUM, of_all_ranks(kRanks, shape, dtype))
                                    : data_of(rank, shape, dtype);
        EXPECT_TRUE(same(mine[0], want));
      }
    });
  });
}

TEST(ThreadReductions, ReduceScatterGivesEachRankItsChunkOfTheReduction) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    for_each_case([&](at::IntArrayRef shape, at::ScalarType dtype) {
      std::vector<int64_t> whole = {kRanks};
      whole.insert(whole.end(), shape.begin(), shape.end());
      for (const auto op : {ReduceOp::SUM, ReduceOp::MAX, ReduceOp::AVG}) {
        if (!has_meaning(op, dtype)) continue;
        at::Tensor mine = data_of(rank, whole, dtype);
        at::Tensor out = at::empty(shape, dtype);
        backend._reduce_scatter_base(out, mine, {.reduceOp = op})->wait();
        const at::Tensor sum = reference(op, of_all_ranks(kRanks, whole, dtype));
        EXPECT_TRUE(same(out, sum[rank]));
      }
    });
  });
}

TEST(ThreadReductions, ReduceScatterOfUnevenLists) {
  run_ranks(3, [](int rank) {
    auto& backend = everyone(3)->backend(at::kCPU);
    std::vector<Tensors> inputs(1);
    for (int to = 0; to < 3; ++to) inputs[0].push_back(data_of(rank, {to + 1}, at::kFloat, to));
    Tensors out = {at::empty({rank + 1})};
    backend.reduce_scatter(out, inputs)->wait();
    EXPECT_TRUE(
        same(out[0], reference(ReduceOp::SUM, of_all_ranks(3, {rank + 1}, at::kFloat, rank))));
  });
}

TEST(ThreadReductions, SparseTensorsAddUp) {
  run_ranks(3, [](int rank) {
    auto& backend = everyone(3)->backend(at::kCPU);
    const auto at_place = [](int place) {
      return at::sparse_coo_tensor(at::full({1, 1}, place, at::kLong), at::ones({1, 2}), {4, 2});
    };
    Tensors mine = {at_place(rank % 2)};  // ranks 0 and 2 share a place
    backend.allreduce_sparse(mine, {})->wait();
    EXPECT_TRUE(same(mine[0].to_dense(), at_place(0).to_dense() * 2 + at_place(1).to_dense()));
  });
}

}  // namespace thread_reductions_test
}  // namespace tessera
