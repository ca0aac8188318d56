#include "tessera/dtensor/dtensor.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/policy.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"

namespace tessera {
namespace dtensor_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::spread;
using test::whole_numbers;

TEST(DTensor, ReportsTheGlobalTensorAndHoldsAPart) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const at::Tensor full = whole_numbers({6, 5});
    const at::Tensor x = spread(full, mesh, "S0,S1");
    EXPECT_TRUE(is_dtensor(x));
    EXPECT_FALSE(is_dtensor(full));
    EXPECT_EQ(x.sizes(), full.sizes());
    EXPECT_EQ(x.device(), full.device());
    EXPECT_EQ(sharding(x).placements_text(), "S0,S1");
    EXPECT_TRUE(at::equal(to_local(x), test::part_of(full, sharding(x), *mesh.my_coordinate())));
    EXPECT_TRUE(at::equal(full_tensor(x), full));
  });
}

TEST(DTensor, DistributesTheSourceRanksData) {
  run_ranks(4, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    for (const char* placements : {"S0,R", "R,R", "S1,S0", "R,S1"}) {
      const at::Tensor mine = whole_numbers({6, 5}, 100 + static_cast<uint64_t>(rank));
      const at::Tensor x =
          distribute_tensor(mine, mesh, parse_placements(placements), {.source = 2});
      EXPECT_TRUE(at::equal(full_tensor(x), whole_numbers({6, 5}, 102))) << placements;
    }
  });
}

TEST(DTensor, RunsOpsOnItsParts) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const at::Tensor a = whole_numbers({6, 4}, 1);
    const at::Tensor b = whole_numbers({4, 8}, 2);
    for (const char* left : {"S0,R", "R,S1", "S0,S1", "P(sum),R"}) {
      for (const char* right : {"R,S1", "R,S0", "S0,R", "R,R"}) {
        if (std::string(left)[0] == 'P') continue;
        const at::Tensor x = spread(a, mesh, left);
        const at::Tensor y = spread(b, mesh, right);
        EXPECT_TRUE(at::equal(full_tensor(at::mm(x, y)), at::mm(a, b))) << left << " " << right;
        EXPECT_TRUE(at::equal(full_tensor(at::relu(x) + 1), at::relu(a) + 1));
      }
    }
  });
}

TEST(DTensor, SumsReduceBeforeTheyAreRead) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor x = spread(at::ones({12}), mesh, "S0");
    EXPECT_EQ(x.sum().item<float>(), 12.0F);
  });
}

TEST(DTensor, DescribesRaggedPartsExactly) {
  run_ranks(4, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor mine = at::full({rank + 1, 2}, static_cast<double>(rank));
    const at::Tensor x = from_local(mine, mesh, {Shard(0)});
    EXPECT_EQ(x.sizes(), at::IntArrayRef({10, 2}));
    EXPECT_EQ(sharding(x).placements_text(), "S0[1,2,3,4]");
    std::vector<at::Tensor> parts;
    for (int r = 0; r < 4; ++r) parts.push_back(at::full({r + 1, 2}, static_cast<double>(r)));
    EXPECT_TRUE(at::equal(full_tensor(x), at::cat(parts)));
    EXPECT_TRUE(at::equal(full_tensor(x * 2), at::cat(parts) * 2));
  });
}

TEST(DTensor, PartsThatFitNoTensorAreRefusedOnEveryRank) {
  run_ranks(4, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    EXPECT_THROW(from_local(at::ones({2, rank == 3 ? 5 : 4}), mesh, {Shard(0)}), InvalidArgument);
  });
}

TEST(DTensor, GradientsAreThoseOfTheFullTensor) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const at::Tensor x = whole_numbers({6, 4}, 1);
    const at::Tensor w = whole_numbers({8, 4}, 2).requires_grad_();
    const at::Tensor v = whole_numbers({3, 8}, 3).requires_grad_();
    const auto loss = [](const at::Tensor& in, const at::Tensor& first, const at::Tensor& second) {
      return at::linear(at::relu(at::linear(in, first)), second).pow(2).sum();
    };
    loss(x, w, v).backward();
    const at::Tensor dw = spread(w.detach(), mesh, "R,S0").requires_grad_();
    const at::Tensor dv = spread(v.detach(), mesh, "R,S1").requires_grad_();
    loss(spread(x, mesh, "S0,R"), dw, dv).backward();
    EXPECT_TRUE(at::equal(full_tensor(dw.grad()), w.grad()));
    EXPECT_TRUE(at::equal(full_tensor(dv.grad()), v.grad()));
  });
}

TEST(DTensor, TensorParallelLayersCommunicateOnce) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = spread(whole_numbers({3, 5, 4}, 1), mesh, "R");
    const at::Tensor w = spread(whole_numbers({8, 4}, 2), mesh, "S0");
    const at::Tensor v = spread(whole_numbers({4, 8}, 3), mesh, "S1");
    comm::Recorder recorder(*comm::current_world());
    const CommPolicy explicit_only(ImplicitComm::forbid);
    at::Tensor y = at::linear(at::relu(at::linear(x, w)), v);
    EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "");
    y = redistribute(y, {Replicate()});
    EXPECT_EQ(comm::expect_comm(recorder, "1 all_reduce on tp, 0 implicit"), "");
  });
}

TEST(DTensor, ForbiddenCommunicationIsRefusedWithTheLineToWrite) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = spread(whole_numbers({4, 4}, 1), mesh, "S0");
    const CommPolicy explicit_only(ImplicitComm::forbid);
    try {
      x.cumsum(0);
      FAIL() << "no error";
    } catch (const NotSupported& error) {
      EXPECT_NE(std::string(error.what()).find("redistribute"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("cumsum"), std::string::npos) << error.what();
    }
  });
}

TEST(DTensor, PlainTensorsAmongShardedOnesAreRefused) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = spread(whole_numbers({4, 4}, 1), mesh, "S0");
    EXPECT_THROW(x + at::ones({4, 4}), InvalidArgument);
    EXPECT_TRUE(at::equal(full_tensor(x + at::full({1}, 2.0)), whole_numbers({4, 4}, 1) + 2));
    const ImplicitReplication guard;
    EXPECT_TRUE(
        at::equal(full_tensor(x + at::ones({4, 4}, at::kDouble)), whole_numbers({4, 4}, 1) + 1));
  });
}

TEST(DTensor, ViewsShareTheLocalStorage) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = spread(whole_numbers({4, 6}, 1), mesh, "S0");
    x.view({4, 2, 3}).mul_(2);
    EXPECT_TRUE(at::equal(full_tensor(x), whole_numbers({4, 6}, 1) * 2));
    x.t().add_(1);
    EXPECT_TRUE(at::equal(full_tensor(x), whole_numbers({4, 6}, 1) * 2 + 1));
  });
}

TEST(DTensor, OnAnAxisOfOneRankViewsStayViewsToo) {
  run_ranks(1, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=1,tp=1");
    const at::Tensor x = spread(whole_numbers({4, 6}), mesh, "R,S1");
    for (const at::Tensor& view : {x.detach(), x.t(), x.view({2, 2, 6}), x.narrow(0, 1, 2)}) {
      view.zero_();  // refused if the view had moved
      EXPECT_TRUE(to_local(view).is_alias_of(to_local(x))) << sharding(view).to_text();
    }
    EXPECT_EQ(sharding(x.detach()).placements_text(), "R,S1");
    EXPECT_EQ(sharding(x.t()).placements_text(), "R,S0");
  });
}

TEST(DTensor, MeansOfUnevenPartsAreRight) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    for (int64_t rows : {5, 8, 2}) {
      const at::Tensor full = whole_numbers({rows, 3}, 4);
      at::Tensor x = spread(full, mesh, "S0").requires_grad_();
      EXPECT_TRUE(at::allclose(full_tensor(x.mean()), full.mean()));
      EXPECT_TRUE(at::allclose(full_tensor(x.mean(0)), full.mean(0)));
      x.mean().backward();
      const double share = 1.0 / (3.0 * static_cast<double>(rows));
      EXPECT_TRUE(at::allclose(full_tensor(x.grad()), at::full({rows, 3}, share, at::kDouble)));
    }
  });
}

TEST(DTensor, SqueezesAndSplitsKeepShards) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor full = whole_numbers({4, 1, 6}, 4);
    const at::Tensor x = spread(full, mesh, "S0");
    const CommPolicy explicit_only(ImplicitComm::forbid);
    EXPECT_EQ(sharding(x.squeeze()).placements_text(), "S0");
    EXPECT_EQ(sharding(x.squeeze(1)).placements_text(), "S0");
    const auto parts = x.split(2, 2);
    EXPECT_EQ(parts.size(), 3U);
    EXPECT_EQ(sharding(parts[1]).placements_text(), "S0");
    const CommPolicy any(ImplicitComm::allow);
    EXPECT_TRUE(at::equal(full_tensor(x.squeeze()), full.squeeze()));
    EXPECT_TRUE(at::equal(full_tensor(parts[1]), full.split(2, 2)[1]));
  });
}

TEST(DTensor, AnOutTensorIsWrittenWhereItLies) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = spread(whole_numbers({4, 6}, 1), mesh, "S0");
    at::Tensor out = spread(whole_numbers({4, 6}, 2), mesh, "S0");
    at::add_out(out, x, x);
    EXPECT_TRUE(at::equal(full_tensor(out), whole_numbers({4, 6}, 1) * 2));
    at::Tensor elsewhere = spread(whole_numbers({4, 6}, 2), mesh, "R");
    at::add_out(elsewhere, x, x);
    EXPECT_EQ(sharding(elsewhere).placements_text(), "R");
    EXPECT_TRUE(at::equal(full_tensor(elsewhere), whole_numbers({4, 6}, 1) * 2));
    at::Tensor other_shape = spread(whole_numbers({6, 4}, 2), mesh, "S0");
    EXPECT_THROW(at::add_out(other_shape, x, x), InvalidArgument);
    EXPECT_TRUE(at::equal(full_tensor(other_shape), whole_numbers({6, 4}, 2)));
  });
}

TEST(DTensor, GradientsFlowThroughItsBorders) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor mine = at::full({2, 3}, 1.0 + rank).requires_grad_();
    const at::Tensor x = from_local(mine, mesh, {Shard(0)});
    const at::Tensor y = to_local(redistribute(x * x, {Replicate()}));
    y.sum().backward();
    EXPECT_TRUE(at::equal(mine.grad(), mine.detach() * 2));
  });
}

TEST(DTensor, BadRequestsAreRefusedWithAReason) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor full = whole_numbers({4, 4});
    const at::Tensor x = spread(full, mesh, "S0");
    EXPECT_THROW(distribute_tensor(full, mesh, {Shard(2)}), InvalidArgument);
    EXPECT_THROW(distribute_tensor(full, mesh, {Shard(0), Replicate()}), InvalidArgument);
    EXPECT_THROW(redistribute(x, {Partial()}), InvalidArgument);
    EXPECT_THROW(redistribute(full, {Replicate()}), InvalidArgument);
    EXPECT_THROW(at::mm(x, spread(whole_numbers({3, 4}), mesh, "S0")), c10::Error);
  });
}

}  // namespace dtensor_test
}  // namespace tessera
