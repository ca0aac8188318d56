// A Llama in plain torch::nn with its weights sharded by hand, without styles or hints: each
// partial sum is reduced once, forward and backward.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>

#include "tessera/dtensor/policy.h"
#include "tessera/dtensor/tensor/kept_copies.h"
#include "tessera/module/distribute_module.h"
#include "tests/parallel/parallel_cases.h"

namespace tessera::test {
namespace reduced_once_test {

constexpr int kLayers = 3;

void shard_by_hand(const std::string& name, torch::nn::Module& module, const DeviceMesh& mesh) {
  auto* linear = module.as<torch::nn::LinearImpl>();
  if (linear == nullptr || name == "head") return;
  const bool by_inputs = name.ends_with("wo") || name.ends_with("down");
  distribute_(linear->weight, mesh, {Replicate(), Shard(by_inputs ? 1 : 0)});
}

at::Tensor replicated(const at::Tensor& plain, const DeviceMesh& mesh) {
  return distribute_tensor(plain, mesh, {Replicate(), Replicate()});
}

/// A Llama on dp=2,tp=2, and a batch for it.
struct PlainLlama {
  PlainLlama()
      : mesh(comm::init_device_mesh("dp=2,tp=2")),
        net(blocks::LlamaSizes{kWidth, kHeads, kHeads, kHidden, 50, kLayers}) {
    set_parameters(*net, 9);
    distribute_module(*net, mesh, shard_by_hand);
    const at::Tensor angles = test_numbers({kPlaces, kWidth / kHeads}, 77);
    cos = replicated(at::cos(angles), mesh);
    sin = replicated(at::sin(angles), mesh);
    tokens = distribute_tensor(test_numbers({4, kPlaces}, 3, 50).to(at::kLong), mesh,
                               {Shard(0), Replicate()});
  }
  at::Tensor loss(const at::Tensor& logits) const {
    return at::cross_entropy_loss(logits.flatten(0, 1), tokens.flatten());
  }

  DeviceMesh mesh;
  blocks::Llama net;
  at::Tensor cos, sin, tokens;
};

TEST(ReducedOnce, APlainLlamaSendsTwoAllReducesALayerEachWay) {
  test::run_ranks(4, [](int) {
    PlainLlama llama;
    comm::Recorder recorder(*comm::current_world());
    const at::Tensor logits = llama.net(llama.tokens, llama.cos, llama.sin);
    EXPECT_EQ(comm::expect_comm(recorder, "6 all_reduce on tp, 6 implicit"), "");
    recorder.clear();
    llama.loss(logits).backward();
    EXPECT_EQ(recorder.count_on("tp"), 2 * kLayers) << recorder.to_text();
  });
}

/// What the second step of training sends.
std::string messages_of_a_step(PlainLlama& llama, const std::string& expected) {
  torch::optim::SGD optimizer(llama.net->parameters(), 0.05);
  const auto step = [&] {
    optimizer.zero_grad();
    const at::Tensor loss = llama.loss(llama.net(llama.tokens, llama.cos, llama.sin));
    loss.backward();
    optimizer.step();
  };
  step();
  comm::Recorder recorder(*comm::current_world());
  step();
  return comm::expect_comm(recorder, expected);
}

/// 43 messages: four a layer on tp; on dp the loss and each of the 30 gradients.
TEST(ReducedOnce, AStepOfAPlainLlamaSendsTwelveMessagesOnTp) {
  test::run_ranks(4, [](int) {
    PlainLlama llama;
    EXPECT_EQ(llama.net->parameters().size(), 30U);
    EXPECT_EQ(messages_of_a_step(llama, "12 all_reduce on tp, 31 all_reduce on dp"), "");
  });
}

/// With reduce_gradients, all gradients are one message.
TEST(ReducedOnce, GradientsAreOneMessageIfAsked) {
  test::run_ranks(4, [](int) {
    PlainLlama llama;
    reduce_gradients(*llama.net);
    EXPECT_EQ(messages_of_a_step(llama, "12 all_reduce on tp, 2 all_reduce on dp"), "");
  });
}

TEST(ReducedOnce, ACopyIsDroppedWhenItsTensorIsWrittenOrFreed) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor x = distribute_tensor(test_numbers({3, 4}, 1), mesh, {Shard(1)});
    const at::Tensor w = distribute_tensor(test_numbers({4, 5}, 2), mesh, {Shard(0)});
    at::Tensor y = at::mm(x, w);
    comm::Recorder recorder(*comm::current_world());
    const at::Tensor first = at::relu(y);
    const at::Tensor again = y.abs();
    EXPECT_EQ(comm::expect_comm(recorder, "1 all_reduce on tp"), "");
    y.mul_(2);
    const at::Tensor doubled = at::relu(y);
    EXPECT_EQ(comm::expect_comm(recorder, "2 all_reduce on tp"), "");
    EXPECT_TRUE(full_tensor(doubled).allclose(full_tensor(first) * 2));
  });
  EXPECT_EQ(dtensor::tensors_with_copies(), 0U);
}

/// A comparison records nothing, and so does its reduction; a product records a use of the same
/// values.
TEST(ReducedOnce, AComparisonAndAProductShareTheValues) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor x = distribute_tensor(test_numbers({3, 4}, 1), mesh, {Shard(1)});
    const at::Tensor w = distribute_tensor(test_numbers({4, 5}, 2), mesh, {Shard(0)});
    const at::Tensor weight = w.detach().requires_grad_();
    const at::Tensor y = at::mm(x, weight);
    comm::Recorder recorder(*comm::current_world());
    const at::Tensor mask = y > 0;
    const at::Tensor kept = y * mask;
    const at::Tensor other = y < 1;
    EXPECT_EQ(comm::expect_comm(recorder, "1 all_reduce on tp"), "");
    EXPECT_TRUE(kept.requires_grad());
    (kept * kept).sum().backward();
    const at::Tensor plain = full_tensor(w).requires_grad_();
    const at::Tensor product = at::mm(full_tensor(x), plain);
    const at::Tensor want = product * (product > 0);
    (want * want).sum().backward();
    EXPECT_TRUE(full_tensor(weight.grad()).allclose(plain.grad()));
    EXPECT_TRUE(full_tensor(other).equal(product < 1));
  });
}

TEST(ReducedOnce, WhatRecordsNothingAcceptsViewsOfWhichNothingCanBeRecorded) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    at::Tensor x = from_local(test_numbers({3, 4}, 1), mesh, {Partial()}).requires_grad_() * 1;
    at::Tensor view;
    {
      const at::NoGradGuard no_grad;
      view = x.select(0, 1);
    }
    const at::Tensor part = x.unbind(0)[2];
    x.mul_(2);
    const at::Tensor want = test_numbers({3, 4}, 1) * 4;
    for (int round = 0; round < 2; ++round) {  // the second uses the copy of the first
      EXPECT_TRUE(full_tensor(view > 0).equal(want[1] > 0));
      EXPECT_TRUE(full_tensor(part > 0).equal(want[2] > 0));
      EXPECT_TRUE(full_tensor(view.argmax()).equal(want[1].argmax()));
    }
    EXPECT_THROW(view * view, c10::Error) << "as of plain tensors";
  });
}

TEST(ReducedOnce, ATensorThatNeedsNoGradientAnyMoreUsesNoRecordedCopy) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    at::Tensor x = from_local(test_numbers({3, 4}, 1), mesh, {Partial()}).detach();
    x.requires_grad_();
    const at::Tensor kept = at::relu(x);
    x.requires_grad_(false);
    EXPECT_FALSE(at::relu(x).requires_grad());
    const at::NoGradGuard no_grad;
    x.requires_grad_();
    EXPECT_FALSE(at::relu(x).requires_grad());
  });
}

/// detach_() cuts the tensor off from what it was made of; the copies that were recorded before are
/// not.
TEST(ReducedOnce, ADetachedTensorUsesNoCopyThatWasRecordedBefore) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor w = from_local(test_numbers({3, 4}, 1), mesh, {Partial()}).requires_grad_();
    const at::Tensor x = w * 1;
    const at::Tensor before = at::relu(x);
    x.detach_().requires_grad_();
    (x * x).sum().backward();
    EXPECT_FALSE(w.grad().defined());
    ASSERT_TRUE(x.grad().defined());
    EXPECT_TRUE(full_tensor(x.grad()).allclose(test_numbers({3, 4}, 1) * 4));
    before.sum().backward();
    EXPECT_TRUE(full_tensor(w.grad()).equal((test_numbers({3, 4}, 1) > 0).to(at::kDouble)));
  });
}

TEST(ReducedOnce, OnlyTheLastTensorsHaveCopies) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor x = distribute_tensor(test_numbers({3, 4}, 1), mesh, {Shard(1)});
    const at::Tensor w = distribute_tensor(test_numbers({4, 5}, 2), mesh, {Shard(0)});
    std::vector<at::Tensor> sums;
    for (size_t i = 0; i < dtensor::kMostTensors + 5; ++i) {
      sums.push_back(at::mm(x, w));
      at::relu(sums.back());
    }
    EXPECT_LE(dtensor::tensors_with_copies(), 2 * dtensor::kMostTensors);  // of two threads
    comm::Recorder recorder(*comm::current_world());
    at::relu(sums.back());
    EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "");
    at::relu(sums.front());
    EXPECT_EQ(comm::expect_comm(recorder, "1 all_reduce on tp"), "");
  });
}

/// Where implicit communication is forbidden, the first use that needs the sum is the error.
TEST(ReducedOnce, AForbiddenReductionIsAnError) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor x = distribute_tensor(test_numbers({3, 4}, 1), mesh, {Shard(1)});
    const at::Tensor y = at::mm(x, distribute_tensor(test_numbers({4, 5}, 2), mesh, {Shard(0)}));
    const CommPolicy strict(ImplicitComm::forbid);
    EXPECT_ANY_THROW(at::relu(y));
    EXPECT_NO_THROW(y + y);
  });
}

}  // namespace reduced_once_test
}  // namespace tessera::test
