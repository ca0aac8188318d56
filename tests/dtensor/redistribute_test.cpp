// redistribute as autograd and a program see it: asynchronous, with casts, printed.
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/observe/recorder.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"

namespace tessera {
namespace redistribute_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::whole_numbers;

TEST(RedistributeAsync, GivesTheSameTensorAndGradient) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const at::Tensor full = whole_numbers({6, 5});
    for (const char* from : {"S0,S1", "S0,S0", "R,R", "R,S1"}) {
      for (const char* to : {"R,R", "S1,S0", "S0,R"}) {
        const at::Tensor x = distribute_tensor(full, mesh, parse_placements(from)).requires_grad_();
        PendingTensor pending = redistribute_async(x * 2, parse_placements(to));
        const at::Tensor y = pending.wait();
        EXPECT_TRUE(pending.done());
        EXPECT_EQ(sharding(y).placements_text(), to);
        EXPECT_TRUE(at::equal(full_tensor(y.detach()), full * 2)) << from << " -> " << to;
        (y * y).sum().backward();
        EXPECT_TRUE(at::equal(full_tensor(x.grad()), full * 8)) << from << " -> " << to;
        EXPECT_THROW(pending.wait(), InvalidArgument) << "once";
      }
    }
  });
}

TEST(RedistributeAsync, ReducesPartialsInTheBackground) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor a = distribute_tensor(whole_numbers({4, 6}, 1), mesh, {Shard(1)});
    const at::Tensor b = distribute_tensor(whole_numbers({6, 3}, 2), mesh, {Shard(0)});
    PendingTensor first = redistribute_async(at::mm(a, b), {Shard(0)});
    PendingTensor second = redistribute_async(at::mm(a, b), {Replicate()});
    const at::Tensor want = at::mm(whole_numbers({4, 6}, 1), whole_numbers({6, 3}, 2));
    EXPECT_TRUE(at::equal(full_tensor(second.wait()), want));
    EXPECT_TRUE(at::equal(full_tensor(first.wait()), want));
    EXPECT_THROW(redistribute_async(a, {Partial()}), InvalidArgument);
  });
}

TEST(Redistribute, CastsForwardAndBackward) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    // 257 is no bfloat16: a cast shows.
    const at::Tensor full = at::full({4, 2}, 257.0, at::kDouble);
    const auto leaf = [&] { return distribute_tensor(full, mesh, {Shard(0)}).requires_grad_(); };

    const at::Tensor x = leaf();
    const at::Tensor y = redistribute(x, {Replicate()}, {.forward_dtype = at::kBFloat16});
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(full_tensor(y.detach()), full.to(at::kBFloat16)));
    y.sum().backward();
    EXPECT_EQ(x.grad().scalar_type(), at::kDouble) << "the gradient is of the tensor's dtype";

    const at::Tensor u = leaf();
    const at::Tensor v = redistribute(u, {Replicate()}, {.backward_dtype = at::kBFloat16});
    EXPECT_EQ(v.scalar_type(), at::kDouble);
    (v * 257).sum().backward();
    EXPECT_EQ(u.grad().scalar_type(), at::kDouble);
    EXPECT_TRUE(at::equal(full_tensor(u.grad()), full.to(at::kBFloat16).to(at::kDouble)));
  });
}

TEST(Redistribute, TheForwardDtypeIsWhatTravels) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = distribute_tensor(whole_numbers({4, 8}), mesh, {Shard(0)});
    comm::Recorder recorder(*comm::current_world());
    redistribute(x, {Replicate()});
    const int64_t wide = recorder.events().back().bytes();
    redistribute(x, {Replicate()}, {.forward_dtype = at::kBFloat16});
    EXPECT_EQ(recorder.events().back().bytes() * 4, wide);
  });
}

TEST(Redistribute, IsTwiceDifferentiable) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor full = whole_numbers({4, 3});
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)}).requires_grad_();
    const at::Tensor y = redistribute_async(x.pow(3), {Replicate()}).wait();
    const auto first = torch::autograd::grad({y.sum()}, {x}, {}, true, true);
    const auto second = torch::autograd::grad({redistribute(first[0], {Shard(1)}).sum()}, {x});
    EXPECT_TRUE(at::equal(full_tensor(second[0]), full * 6));
  });
}

TEST(ToText, SaysWhatTheTensorIsAndShowsThePart) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = distribute_tensor(at::arange(6).reshape({3, 2}), mesh, {Shard(0)});
    EXPECT_TRUE(std::ranges::equal(local_shape(x), std::vector<int64_t>{rank == 0 ? 2 : 1, 2}));
    EXPECT_TRUE(std::ranges::equal(local_offset(x), std::vector<int64_t>{rank == 0 ? 0 : 2, 0}));
    const std::string text = to_text(x);
    if (rank == 1) {
      EXPECT_EQ(text.substr(0, text.find('\n')),
                "DTensor tp=2 : S0 : 3x2 i64, local 1x2 at 2,0 on rank 1");
      EXPECT_NE(text.find("4  5"), std::string::npos) << text;
    }
    EXPECT_EQ(to_text(at::ones({1})), " 1\n[ CPUFloatType{1} ]");
    EXPECT_THROW(local_shape(at::ones({1})), InvalidArgument);
  });
}

}  // namespace redistribute_test
}  // namespace tessera
