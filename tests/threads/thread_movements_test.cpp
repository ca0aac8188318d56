// Collectives that move data among thread ranks, for all dtypes and sizes.
#include "tessera/comm/threads.h"
#include "tests/support_pure/property.h"
#include "tests/threads/reference.h"

namespace tessera {
namespace thread_movements_test {

using comm::run_ranks;
using test::data_of;
using test::everyone;
using test::for_each_case;
using test::of_all_ranks;
using test::same;
using test::Tensors;

constexpr int kRanks = 4;

TEST(ThreadMovements, BroadcastCopiesTheRoot) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    for_each_case([&](at::IntArrayRef shape, at::ScalarType dtype) {
      Tensors mine = {data_of(rank, shape, dtype)};
      backend.broadcast(mine, {.rootRank = 2})->wait();
      EXPECT_TRUE(same(mine[0], data_of(2, shape, dtype)));
    });
  });
}

TEST(ThreadMovements, AllGatherIntoTensorConcatenates) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    for_each_case([&](at::IntArrayRef shape, at::ScalarType dtype) {
      at::Tensor mine = data_of(rank, shape, dtype);
      at::Tensor all = at::empty({kRanks * mine.numel()}, dtype);
      backend._allgather_base(all, mine)->wait();
      Tensors flat;
      for (auto& part : of_all_ranks(kRanks, shape, dtype)) flat.push_back(part.reshape(-1));
      EXPECT_TRUE(same(all, at::cat(flat)));
    });
  });
}

TEST(ThreadMovements, AllGatherOfUnevenListsFillsEachPlace) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    for (const auto dtype : test::all_dtypes()) {
      Tensors mine = {data_of(rank, {rank, 3}, dtype)};  // rank 0 has nothing
      std::vector<Tensors> all(1);
      for (int r = 0; r < kRanks; ++r) all[0].push_back(at::empty({r, 3}, dtype));
      backend.allgather(all, mine)->wait();
      for (int r = 0; r < kRanks; ++r) {
        EXPECT_TRUE(same(all[0][static_cast<size_t>(r)], data_of(r, {r, 3}, dtype)));
      }
    }
  });
}

TEST(ThreadMovements, AllToAllSingleTransposesRowsOfAnyCount) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    test::for_each_seed(30, [&](test::Rng& rng) {
      // The same table on every rank: rows[a][b] go from a to b.
      int64_t rows[kRanks][kRanks];
      for (auto& line : rows) {
        for (auto& count : line) count = rng.between(0, 3);
      }
      const auto dtype = rng.one_of(test::all_dtypes());
      const int64_t width = rng.between(1, 3);
      const auto message = [&](int from, int to) {
        return data_of(from, {rows[from][to], width}, dtype, to);
      };
      Tensors out;
      Tensors in;
      std::vector<int64_t> input_splits;
      std::vector<int64_t> output_splits;
      for (int r = 0; r < kRanks; ++r) {
        in.push_back(message(rank, r));
        out.push_back(message(r, rank));
        input_splits.push_back(rows[rank][r]);
        output_splits.push_back(rows[r][rank]);
      }
      at::Tensor input = at::cat(in);
      at::Tensor output = at::empty_like(at::cat(out));
      backend.alltoall_base(output, input, output_splits, input_splits)->wait();
      EXPECT_TRUE(same(output, at::cat(out)));

      Tensors list_out;
      for (const auto& t : out) list_out.push_back(at::empty_like(t));
      backend.alltoall(list_out, in)->wait();
      for (size_t r = 0; r < out.size(); ++r) EXPECT_TRUE(same(list_out[r], out[r]));
    });
  });
}

TEST(ThreadMovements, AllToAllSingleWithoutSplitsIsEven) {
  run_ranks(2, [](int rank) {
    auto& backend = everyone(2)->backend(at::kCPU);
    at::Tensor input = at::arange(4) + 10 * rank;
    at::Tensor output = at::empty({4}, at::kLong);
    std::vector<int64_t> none;
    backend.alltoall_base(output, input, none, none)->wait();
    EXPECT_TRUE(same(output, at::cat({at::arange(2) + 2 * rank, at::arange(2) + 10 + 2 * rank})));
  });
}

TEST(ThreadMovements, GatherAndScatterGoByTheRoot) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    for_each_case([&](at::IntArrayRef shape, at::ScalarType dtype) {
      const int root = 1;
      Tensors mine = {data_of(rank, shape, dtype)};
      std::vector<Tensors> all;
      if (rank == root) all = {of_all_ranks(kRanks, shape, dtype, 9)};
      backend.gather(all, mine, {.rootRank = root})->wait();
      if (rank == root) {
        for (int r = 0; r < kRanks; ++r) {
          EXPECT_TRUE(same(all[0][static_cast<size_t>(r)], data_of(r, shape, dtype)));
        }
      }
      Tensors back = {at::empty(shape, dtype)};
      backend.scatter(back, all, {.rootRank = root})->wait();
      EXPECT_TRUE(same(back[0], data_of(rank, shape, dtype)));
    });
  });
}

TEST(ThreadMovements, MetaTensorsAreCheckedButNotMoved) {
  run_ranks(2, [](int) {
    auto& backend = everyone(2)->backend(at::kMeta);
    const auto meta = at::TensorOptions().device(at::kMeta);
    at::Tensor mine = at::empty({3}, meta);
    at::Tensor all = at::empty({6}, meta);
    EXPECT_TRUE(backend._allgather_base(all, mine)->wait());
    at::Tensor wrong = at::empty({5}, meta);
    EXPECT_THROW(backend._allgather_base(wrong, mine)->wait(), std::exception);
  });
}

}  // namespace thread_movements_test
}  // namespace tessera
