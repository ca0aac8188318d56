// Requests that cannot be served: refused on every rank, with the op, the shardings and what to do
// in the message, before anything is sent and with all tensors as they were.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"
#include "tests/support/training.h"

namespace tessera {
namespace bad_input_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::spread;
using test::test_numbers;

/// What a rank may have in hand when it asks.
struct Hands {
  DeviceMesh mesh;   // dp=2,tp=2
  DeviceMesh other;  // the same ranks as one axis
  at::Tensor full;   // 4x6, plain
  at::Tensor x;      // 4x6 : S0,S1
  at::Tensor y;      // 4x6 : S0 on `other`
  at::Tensor sum;    // scalar : P(sum),P(sum)
};

struct BadRequest {
  const char* name;
  std::function<void(Hands&)> ask;
  std::vector<const char*> says;  ///< all of these are in the message
};

const std::vector<BadRequest>& bad_requests() {
  static const std::vector<BadRequest> requests = {
      {"DistributeOverADimThatIsNotThere",
       [](Hands& h) {
         distribute_tensor(h.full, h.mesh, {Shard(2), Replicate()});
       },
       {"S2", "4x6"}},
      {"DistributeWithTooFewPlacements",
       [](Hands& h) { distribute_tensor(h.full, h.mesh, {Shard(0)}); },
       {"dp=2,tp=2", "1"}},
      {"DistributeWithTooManyPlacements",
       [](Hands& h) {
         distribute_tensor(h.full, h.mesh, {Shard(0), Shard(1), Replicate()});
       },
       {"dp=2,tp=2", "3"}},
      {"DistributeASparseTensor",
       [](Hands& h) {
         distribute_tensor(h.full.to_sparse(), h.mesh, {Shard(0), Replicate()});
       },
       {"distribute_tensor", "a sparse tensor cannot be sharded"}},
      {"FromLocalOfACompressedTensor",
       [](Hands& h) {
         from_local(h.full.to_sparse_csr(), h.mesh, {Shard(0), Replicate()});
       },
       {"from_local", "a sparse tensor cannot be sharded"}},
      {"ProductWithASparseTensor",
       [](Hands& h) { at::mm(at::eye(4).to_sparse(), h.x); },
       {"aten::mm", "sparse or nested", "to_dense"}},
      {"ProductWithACompressedTensor",
       [](Hands& h) { at::mm(at::eye(4).to_sparse_csr(), h.x); },
       {"aten::mm", "sparse or nested", "to_dense"}},
      {"ASparseTensorOfShardedValues",
       [](Hands& h) {
         at::sparse_coo_tensor(at::zeros({1, 4}, at::kLong), h.x, {4, 6});
       },
       {"sparse", "cannot be sharded"}},
      {"DistributeToPartial",
       [](Hands& h) {
         distribute_tensor(h.full, h.mesh, {Partial(), Replicate()});
       },
       {"distribute_tensor", "P(sum)"}},
      {"DistributeFromARankThatIsNotThere",
       [](Hands& h) {
         distribute_tensor(h.full, h.mesh, {Shard(0), Replicate()}, {.source = 4});
       },
       {"distribute_tensor", "4", "dp=2,tp=2"}},
      {"DistributeWhatIsShardedOtherwise",
       [](Hands& h) {
         distribute_tensor(h.x, h.mesh, {Replicate(), Replicate()});
       },
       {"S0,S1", "redistribute"}},
      {"DistributeWhatAutogradComputed",
       [](Hands& h) {
         distribute_tensor(h.full.clone().requires_grad_() * 2, h.mesh, {Shard(0), Shard(1)});
       },
       {"leaf", "from_local"}},
      {"RedistributeToPartial",
       [](Hands& h) {
         redistribute(h.x, {Partial(), Replicate()});
       },
       {"redistribute", "P(sum)"}},
      {"RedistributeOverADimThatIsNotThere",
       [](Hands& h) {
         redistribute(h.x, {Shard(2), Replicate()});
       },
       {"S2", "4x6"}},
      {"RedistributeWithTheWrongNumberOfPlacements",
       [](Hands& h) { redistribute(h.x, {Shard(0)}); },
       {"dp=2,tp=2"}},
      {"RedistributeAnotherShape",
       [](Hands& h) {
         redistribute(h.x,
                      Sharding(h.mesh, {Shard(0), Replicate()}, {5, 6}, {.dtype = DType::f64}));
       },
       {"4x6", "5x6"}},
      {"RedistributeAPlainTensor",
       [](Hands& h) {
         redistribute(h.full, {Shard(0), Replicate()});
       },
       {"redistribute", "plain", "4x6"}},
      {"FromLocalOverADimThatIsNotThere",
       [](Hands& h) {
         from_local(h.full, h.mesh, {Shard(2), Replicate()});
       },
       {"from_local", "S2"}},
      {"FromLocalWithTheWrongNumberOfPlacements",
       [](Hands& h) { from_local(h.full, h.mesh, {Shard(0)}); },
       {"dp=2,tp=2"}},
      {"FromLocalOfAnotherShapeThanSaid",
       [](Hands& h) {
         from_local(h.full, h.mesh, {Shard(0), Replicate()}, {.shape = std::vector<int64_t>{6, 6}});
       },
       {"from_local", "4x6", "6x6", "3x6"}},
      {"FromLocalOfAShardedTensor",
       [](Hands& h) {
         from_local(h.x, h.mesh, {Shard(0), Replicate()});
       },
       {"from_local", "plain"}},
      {"ToLocalOfAPlainTensor", [](Hands& h) { to_local(h.full); }, {"to_local", "4x6"}},
      {"FullTensorOfAPlainTensor", [](Hands& h) { full_tensor(h.full); }, {"full_tensor"}},
      {"AddPlain", [](Hands& h) { h.x + h.full; }, {"aten::add.Tensor", "4x6", "distribute"}},
      {"AddPlainInPlace", [](Hands& h) { h.x.add_(h.full); }, {"aten::add_.Tensor", "4x6"}},
      {"AddOfTwoMeshes",
       [](Hands& h) { h.x + h.y; },
       {"aten::add.Tensor", "dp=2,tp=2", "all=4", "S0,S1", "redistribute"}},
      {"AddOfTwoMeshesInPlace",
       [](Hands& h) { h.y.add_(h.x); },
       {"aten::add_.Tensor", "dp=2,tp=2", "all=4"}},
      {"CatOfTwoMeshes",
       [](Hands& h) {
         at::cat({h.x, h.y});
       },
       {"aten::cat", "all=4"}},
      {"ProductOfShapesThatDoNotFit",
       [](Hands& h) { at::mm(h.x, h.x); },
       {"4x6", "aten::mm", "S0,S1"}},
      {"SumOfShapesThatDoNotFit",
       [](Hands& h) { h.x + h.x.narrow(0, 0, 3); },
       {"aten::add.Tensor", "S0,S1"}},
      {"ReductionOfADimThatIsNotThere", [](Hands& h) { h.x.sum(3); }, {"aten::sum", "S0,S1", "3"}},
      {"ViewOfAnotherSize",
       [](Hands& h) {
         h.x.view({5, 5});
       },
       {"aten::view", "S0,S1"}},
      {"OutOfAnotherShape",
       [](Hands& h) { at::mm_out(h.x, h.x, h.x.t()); },
       {"aten::mm.out", "4x4", "4x6"}},
      {"WriteThatChangesTheShape",
       [](Hands& h) {
         h.x.resize_({2, 2});
       },
       {"aten::resize_", "S0,S1", "4x6"}},
      {"TypesThatDoNotFit",
       [](Hands& h) { at::mm(h.x, h.x.to(at::kFloat).t()); },
       {"aten::mm", "f64", "dtype"}},
  };
  return requests;
}

class BadInput : public ::testing::TestWithParam<size_t> {};

TEST_P(BadInput, IsRefusedBeforeAnythingIsSent) {
  const BadRequest& request = bad_requests()[GetParam()];
  run_ranks(4, [&](int) {
    Hands h;
    h.mesh = init_device_mesh("dp=2,tp=2");
    h.other = h.mesh.flatten("all");
    h.full = test_numbers({4, 6}, 1);
    h.x = spread(h.full, h.mesh, "S0,S1");
    h.y = spread(h.full, h.other, "S0");
    h.sum = h.x.sum();
    const std::vector<at::Tensor> tensors = {h.x, h.y, h.sum};
    std::vector<at::Tensor> before;
    std::vector<Sharding> layouts;
    for (const auto& t : tensors) {
      before.push_back(to_local(t).clone());
      layouts.push_back(sharding(t));
    }
    std::string message;
    comm::Recorder recorder(*comm::current_world());
    try {
      request.ask(h);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      message = error.what();
    } catch (const c10::Error& error) {
      message = error.what_without_backtrace();
    }
    EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "");
    for (const char* word : request.says) {
      EXPECT_NE(message.find(word), std::string::npos) << word << " is not in: " << message;
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(sharding(tensors[i]), layouts[i]);
      EXPECT_EQ(tensors[i].sizes(),
                at::IntArrayRef(layouts[i].shape().data(), layouts[i].shape().size()));
      EXPECT_TRUE(at::equal(to_local(tensors[i]), before[i]));
    }
  });
}

std::vector<size_t> all_requests() {
  std::vector<size_t> out(bad_requests().size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = i;
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, BadInput, ::testing::ValuesIn(all_requests()), [](const auto& info) {
  return std::string(bad_requests()[info.param].name);
});

/// A rank outside the mesh cannot know how large the tensor is.
TEST(RanksOutsideTheMesh, MustBeToldTheShape) {
  run_ranks(3, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2@0,1");
    const at::Tensor part = test_numbers({2, 6}, 1);
    const FromLocalOptions shape{.shape = std::vector<int64_t>{4, 6}};
    EXPECT_EQ(from_local(part, mesh, {Shard(0)}, shape).sizes(), at::IntArrayRef({4, 6}));
    if (rank < 2) {
      EXPECT_EQ(from_local(part, mesh, {Shard(0)}).size(0), 4);
    } else {
      EXPECT_THROW(from_local(part, mesh, {Shard(0)}), InvalidArgument);
    }
  });
}

/// Two worlds that know nothing of each other share no rank, whatever the numbers.
TEST(OtherWorlds, DoNotMix) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const DeviceMesh paper = DeviceMesh::parse("tp=2");
    const at::Tensor x = spread(test_numbers({4, 6}, 1), mesh, "S0");
    comm::Recorder recorder(*comm::current_world());
    EXPECT_THROW(redistribute(x, paper, {Shard(0)}), Error);
    EXPECT_THROW(from_local(to_local(x), paper, {Shard(0)}), Error);
    EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "");
  });
}

/// Ranks outside the mesh run the same program: they hold nothing, send nothing and fail nothing.
TEST(RanksOutsideTheMesh, FollowWithEmptyHands) {
  run_ranks(3, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2@0,1");
    const at::Tensor full = test_numbers({4, 6}, 1);
    const at::Tensor weight = test_numbers({6, 6}, 2);
    comm::Recorder recorder(*comm::current_world());
    at::Tensor x = spread(full, mesh, "S0").requires_grad_();
    const at::Tensor w = spread(weight, mesh, "S1").requires_grad_();
    const at::Tensor y = at::layer_norm(at::linear(x, w), {6});
    const at::Tensor largest = std::get<0>(y.max(1));
    const at::Tensor loss = y.pow(2).sum() + largest.sum();
    loss.backward();
    x.detach().mul_(2);
    const at::Tensor all = full_tensor(x.detach());
    EXPECT_EQ(y.sizes(), at::IntArrayRef({4, 6}));
    EXPECT_EQ(x.grad().sizes(), at::IntArrayRef({4, 6}));
    if (rank == 2) {
      EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "");
      EXPECT_EQ(to_local(y).numel(), 0);
      EXPECT_THROW(loss.item<double>(), InvalidArgument);
    } else {
      EXPECT_TRUE(at::equal(all, full * 2));
      EXPECT_GT(loss.item<double>(), 0);
    }
  });
}

}  // namespace bad_input_test
}  // namespace tessera
