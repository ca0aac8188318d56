#include "tessera/parallel/context/sequence_order.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"

namespace tessera {
namespace sequence_order_test {

std::vector<int64_t> indices_of(const SequenceOrder& order, int64_t length) {
  const at::Tensor indices = order.indices(length);
  return {indices.data_ptr<int64_t>(), indices.data_ptr<int64_t>() + indices.numel()};
}

TEST(SequenceOrder, HeadTailGivesEachRankAFrontAndABackPart) {
  EXPECT_EQ(indices_of(SequenceOrder::head_tail(8, 2), 8),
            (std::vector<int64_t>{0, 1, 6, 7, 2, 3, 4, 5}));
  EXPECT_EQ(indices_of(SequenceOrder::head_tail(7, 2), 7),  // parts of 4 and 3
            (std::vector<int64_t>{0, 1, 5, 6, 2, 3, 4}));
}

TEST(SequenceOrder, HeadTailBalancesCausalWork) {
  constexpr int64_t kRows = 1000;
  constexpr int kRanks = 7;
  const auto order = SequenceOrder::head_tail(kRows, kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    const Interval rows = chunk_interval(kRows, kRanks, rank);
    double pairs = 0;
    for (const Interval& part : order.positions_of(rows)) {
      for (int64_t p = part.begin; p < part.end; ++p) pairs += static_cast<double>(p + 1);
    }
    const double mean = static_cast<double>(rows.size()) * (kRows + 1) / 2;
    EXPECT_NEAR(pairs / mean, 1, 0.01) << "rank " << rank;
  }
}

TEST(SequenceOrder, EachDocumentIsSpreadOverAllRanks) {
  const std::vector<int64_t> lengths = {4, 8};
  EXPECT_EQ(indices_of(SequenceOrder::head_tail_of_documents(lengths, 2), 12),
            (std::vector<int64_t>{0, 3, 4, 5, 10, 11, 1, 2, 6, 7, 8, 9}));
}

TEST(SequenceOrder, RestoreUndoesReorder) {
  const at::Tensor x = at::arange(26).reshape({2, 13});
  for (const auto& order :
       {SequenceOrder(), SequenceOrder::head_tail(13, 4), SequenceOrder::head_tail(13, 20)}) {
    EXPECT_TRUE(at::equal(restore_sequence(reorder_sequence(x, 1, order), 1, order), x));
  }
}

TEST(SequenceOrder, RowsAndPositionsAreInverse) {
  const auto order = SequenceOrder::head_tail(12, 3);
  EXPECT_EQ(order.positions_of({2, 6}), (std::vector<Interval>{{10, 12}, {2, 4}}));
  EXPECT_EQ(order.rows_of({0, 4}), (std::vector<Interval>{{0, 2}, {4, 6}}));
  EXPECT_TRUE(
      at::equal(order.indices(12).index_select(0, order.inverse_indices(12)), at::arange(12)));
}

TEST(SequenceOrder, AnyPermutationIsAnOrder) {
  const std::vector<int64_t> positions = {3, 0, 1, 2};
  EXPECT_EQ(indices_of(SequenceOrder::of_positions(positions), 4), positions);
  const std::vector<int64_t> twice = {0, 0, 1};
  EXPECT_THROW(SequenceOrder::of_positions(twice), InvalidArgument);
  EXPECT_THROW(SequenceOrder::head_tail(8, 2).indices(9), InvalidArgument);
}

}  // namespace sequence_order_test
}  // namespace tessera
