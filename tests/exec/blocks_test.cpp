// Copies of boxes: a stretch of the destination by itself is what the whole copy puts there.
#include "tessera/exec/blocks.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "tessera/base/shape.h"
#include "tessera/sharding/local_shape.h"
#include "tests/support_pure/property.h"
#include "tests/support_pure/random_shardings.h"

namespace tessera::exec {
namespace blocks_test {

using test::Rng;

/// What one rank sends to all others in a random redistribution, one piece after the other.
struct Sent {
  BlockCopy copy;
  int64_t numel = 0;
  std::vector<int64_t> in_shape;
};

Sent random_sent(Rng& rng) {
  const auto mesh = test::random_mesh(rng, 2, 6);
  const test::RandomOptions no_partial{.partial = false};
  const auto from = test::random_sharding(rng, mesh, test::random_shape(rng, 4, 300), no_partial);
  const auto to = test::random_sharding_like(rng, from, no_partial);
  const auto everyone = test::all_coordinates(mesh);
  const Coordinate me = rng.one_of(everyone);
  Sent out;
  out.in_shape = local_shape(from, me);
  for (const auto& peer : everyone) {
    const Overlap shared = overlap(from, me, to, peer);
    out.copy.add(shared.to_piece(), out.in_shape, 0, shared.shape(), out.numel);
    out.numel += shared.numel();
  }
  return out;
}

TEST(Blocks, AStretchIsAPartOfTheWhole) {
  int cases = 0, in_order = 0;
  test::for_each_seed(2000, [&](Rng& rng) {
    ++cases;
    const Sent sent = random_sent(rng);
    if (!sent.copy.fills_in_order()) return;
    ++in_order;
    const at::Tensor from = at::arange(numel_of(sent.in_shape), at::kInt);
    at::Tensor whole = at::full({sent.numel}, -1, at::kInt);
    sent.copy.run(from, whole);
    at::Tensor pieces = at::full({sent.numel}, -1, at::kInt);
    for (int64_t at = 0; at < sent.numel;) {
      const int64_t count = rng.between(1, sent.numel - at);
      sent.copy.run_stretch(from, at, count, reinterpret_cast<char*>(pieces.data_ptr<int>() + at));
      at += count;
    }
    EXPECT_TRUE(at::equal(pieces, whole));
  });
  EXPECT_GT(in_order, cases / 2);
}

TEST(Blocks, ACopyThatLeavesAGapDoesNotFillInOrder) {
  Overlap rows;
  rows.runs = {std::vector<tessera::SharedRun>{{0, 1, 2}}};  // elements 0, 1 to places 1, 2
  BlockCopy copy;
  copy.add(rows, std::vector<int64_t>{2}, 0, std::vector<int64_t>{3}, 0);
  EXPECT_FALSE(copy.fills_in_order());
}

}  // namespace blocks_test
}  // namespace tessera::exec
