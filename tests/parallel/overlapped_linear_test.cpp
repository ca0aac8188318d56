// Async tensor parallelism: the same results, in pieces.
#include "tessera/fsdp/fully_shard.h"
#include "tests/parallel/parallel_cases.h"

namespace tessera::test {
namespace overlapped_linear_test {

constexpr int64_t kPieces = 2;

ParallelPlan plan_of_block(int64_t overlap) {
  const RowwiseOptions to_sequence = {.output_layout = Shard(1), .overlap = overlap};
  return {
      {"attention.qkv", ColwiseParallel({.parts = 3, .heads = kHeads, .overlap = overlap})},
      {"attention.out", RowwiseParallel(to_sequence)},
      {"mlp.up", ColwiseParallel({.overlap = overlap})},
      {"mlp.down", RowwiseParallel(to_sequence)},
      {"*_norm", SequenceParallel()},
  };
}

Instance make_block() {
  blocks::GptBlock net(kWidth, kHeads, kHidden);
  set_parameters(*net, 9);
  return {net.ptr(), [net](const auto& x) mutable { return net(x[0]); }};
}

at::Tensor by_sequence(const at::Tensor& x, const DeviceMesh& mesh) {
  return distribute_tensor(x, mesh, {Shard(1)});
}

/// Batches of 3 are split into pieces of 2 and 1; 7 places do not divide over the ranks.
TEST(OverlappedLinear, ABlockTrainsAsOnOneRank) {
  const at::Tensor x = test_numbers({3, kPlaces, kWidth}, 5);
  const at::Tensor target = test_numbers({3, kPlaces, kWidth}, 6);
  const RunResults expected = train(make_block(), x, target);
  for (const int ranks : {2, 3, 4}) {
    test::run_ranks(ranks, [&](int) {
      const DeviceMesh mesh = comm::init_device_mesh("tp=" + std::to_string(ranks));
      const Instance net = make_block();
      parallelize_module(*net.module, mesh, plan_of_block(kPieces));
      expect_same(train(net, by_sequence(x, mesh), by_sequence(target, mesh)), expected);
    });
  }
}

/// Each gather and each reduction is sent in pieces; nothing else is.
TEST(OverlappedLinear, SendsThePieces) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const Instance net = make_block();
    parallelize_module(*net.module, mesh, plan_of_block(kPieces));
    const at::Tensor x = by_sequence(test_numbers({4, kPlaces, kWidth}, 5), mesh).requires_grad_();
    comm::Recorder recorder(*comm::current_world());
    const at::Tensor y = net.call({x});
    EXPECT_EQ(comm::expect_comm(recorder, "4 all_gather on tp, 4 reduce_scatter on tp, 0 implicit"),
              "");
    const at::Tensor loss = at::mse_loss(y, at::zeros_like(y), at::Reduction::Sum);
    recorder.clear();
    loss.backward();
    // The gradients of gathered inputs are reduced in one message each; norms are added up.
    EXPECT_EQ(comm::expect_comm(recorder,
                                "4 all_gather on tp, 2 reduce_scatter on tp, 1 all_reduce on tp"),
              "");
  });
}

/// Queries, keys and values: the first product gathers in pieces, the others use its copy.
TEST(OverlappedLinear, SeveralProductsShareOneGather) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    torch::nn::Linear q(kWidth, 8), k(kWidth, 8);
    for (auto* linear : {&q, &k}) {
      set_parameters(**linear, 3);
      parallelize_module(**linear, mesh, {{"", ColwiseParallel({.overlap = kPieces})}});
    }
    const at::Tensor x = by_sequence(test_numbers({4, kPlaces, kWidth}, 5), mesh);
    comm::Recorder recorder(*comm::current_world());
    const at::Tensor first = q(x), second = k(x);
    EXPECT_EQ(comm::expect_comm(recorder, "2 all_gather on tp"), "");
    EXPECT_TRUE(full_tensor(first).allclose(full_tensor(second)));
  });
}

/// A batch of one cannot be split: the ordinary way.
TEST(OverlappedLinear, ABatchOfOneIsGatheredAtOnce) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const Instance net = make_block();
    parallelize_module(*net.module, mesh, plan_of_block(kPieces));
    const at::Tensor x = by_sequence(test_numbers({1, kPlaces, kWidth}, 5), mesh);
    comm::Recorder recorder(*comm::current_world());
    const at::Tensor y = net.call({x});
    EXPECT_EQ(comm::expect_comm(recorder, "2 all_gather on tp, 2 reduce_scatter on tp"), "");
    EXPECT_TRUE(
        full_tensor(y).allclose(make_block().call({test_numbers({1, kPlaces, kWidth}, 5)})));
  });
}

/// Together with fully_shard, whose weights are gathered for the products.
TEST(OverlappedLinear, WithFullyShardABlockTrainsAsOnOneRank) {
  const at::Tensor x = test_numbers({4, kPlaces, kWidth}, 5);
  const at::Tensor target = test_numbers({4, kPlaces, kWidth}, 6);
  RunResults expected = train(make_block(), x, target);
  expected.erase("output");
  test::run_ranks(4, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=2,tp=2");
    const Instance net = make_block();
    parallelize_module(*net.module, mesh["tp"], plan_of_block(kPieces));
    fully_shard(*net.module, mesh["dp"]);
    const auto mine = [&](const at::Tensor& whole) {
      return by_sequence(whole.chunk(2)[mesh.local_rank("dp")].contiguous(), mesh["tp"]);
    };
    RunResults got = train(net, mine(x), mine(target));
    got.erase("output");
    expect_same(got, expected);
  });
}

}  // namespace overlapped_linear_test
}  // namespace tessera::test
