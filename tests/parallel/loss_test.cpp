// Losses of logits that are sharded over the classes: values and gradients are those of the whole
// logits, which are never gathered.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/nll_loss.h>

#include "tests/parallel/parallel_cases.h"
#include "tests/support/peak_bytes.h"

namespace tessera::test {
namespace loss_test {

constexpr int64_t kRows = 6, kClasses = 11, kIgnored = 3;

struct Inputs {
  at::Tensor logits, target, weight;
};
using LossFn = std::function<at::Tensor(const Inputs&)>;

Inputs plain_inputs() {
  at::Tensor target = test_numbers({kRows}, 2, kClasses).to(at::kLong);
  target[1] = kIgnored;
  return {test_numbers({kRows, kClasses}, 1), target, test_numbers({kClasses}, 4).abs() + 0.1};
}

/// The loss and the gradient of the logits, as they are placed.
std::pair<at::Tensor, at::Tensor> run(const LossFn& fn, Inputs inputs) {
  inputs.logits = inputs.logits.detach().requires_grad_();
  const at::Tensor loss = fn(inputs);
  (loss * loss).sum().backward();
  return {loss.detach(), inputs.logits.grad()};
}

/// On each mesh: equal to the plain loss, and no message has more than a number a row.
void check_loss(const std::string& name, const LossFn& fn) {
  const auto expected = run(fn, plain_inputs());
  for (const auto& [mesh_text, ranks, batch] :
       {std::tuple{"dp=1,tp=2", 2, false}, std::tuple{"dp=1,tp=4", 4, false},
        std::tuple{"dp=2,tp=2", 4, true}, std::tuple{"dp=1,tp=3", 3, false}}) {
    SCOPED_TRACE(name + " on " + mesh_text);
    test::run_ranks(ranks, [&, mesh_text = mesh_text, batch = batch](int) {
      const DeviceMesh mesh = comm::init_device_mesh(mesh_text);
      const Placement rows = batch ? Shard(0) : Replicate();
      const Inputs plain = plain_inputs();
      const Inputs inputs = {distribute_tensor(plain.logits, mesh, {rows, Shard(1)}),
                             distribute_tensor(plain.target, mesh, {rows, Replicate()}),
                             distribute_tensor(plain.weight, mesh, {Replicate(), Replicate()})};
      comm::Recorder recorder(*comm::current_world());
      const auto got = run(fn, inputs);
      recorder.stop();
      EXPECT_EQ(placements(got.second)[1], Shard(1));
      EXPECT_LT((whole(got.first) - expected.first).abs().max().item<double>(), 1e-9);
      EXPECT_LT((whole(got.second) - expected.second).abs().max().item<double>(), 1e-9);
      for (const auto& event : recorder.events()) {
        EXPECT_LE(event.bytes(), 8 * kRows) << recorder.to_text();
      }
      EXPECT_EQ(recorder.count(comm::CommOp::all_to_all), 0) << recorder.to_text();
    });
  }
}

TEST(Loss, CrossEntropyOfShardedClasses) {
  using at::Reduction::Reduction;
  for (const auto reduction : {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
    check_loss("cross_entropy", [=](const Inputs& in) {
      return at::cross_entropy_loss(in.logits, in.target, {}, reduction);
    });
    check_loss("with weights and ignored rows", [=](const Inputs& in) {
      return at::cross_entropy_loss(in.logits, in.target, in.weight, reduction, kIgnored);
    });
    check_loss("with label smoothing", [=](const Inputs& in) {
      return at::cross_entropy_loss(in.logits, in.target, in.weight, reduction, kIgnored, 0.1);
    });
  }
}

TEST(Loss, LogSoftmaxAndNllLossOfShardedClasses) {
  check_loss("nll_loss", [](const Inputs& in) {
    return at::nll_loss(at::log_softmax(in.logits, -1), in.target);
  });
}

TEST(Loss, LogSumExpOverShardedClasses) {
  check_loss("logsumexp", [](const Inputs& in) { return at::logsumexp(in.logits, {1}); });
  check_loss("logsumexp, kept",
             [](const Inputs& in) { return at::logsumexp(in.logits, {-1}, true); });
}

TEST(Loss, CrossEntropySendsThreeSmallMessagesForwardAndNoneBackward) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const Inputs plain = plain_inputs();
    at::Tensor logits = distribute_tensor(plain.logits, mesh, {Shard(1)}).requires_grad_();
    const at::Tensor target = distribute_tensor(plain.target, mesh, {Replicate()});
    comm::Recorder recorder(*comm::current_world());
    const at::Tensor loss = at::cross_entropy_loss(logits, target);
    EXPECT_EQ(comm::expect_comm(recorder, "3 all_reduce on tp"), "");
    recorder.clear();
    loss.backward();
    EXPECT_EQ(recorder.count(), 0) << recorder.to_text();
    EXPECT_EQ(placements(logits.grad())[0], Shard(1));
  });
}

/// What the gradient of nll_loss adds up to is known of that very gradient, until something is
/// written to it.
TEST(Loss, AGradientThatIsChangedOrAddedToIsSummedAgain) {
  const auto with_hook = [](const std::function<at::Tensor(at::Tensor)>& hook) {
    return [hook](const Inputs& in) {
      const at::Tensor scores = at::log_softmax(in.logits, 1);
      scores.register_hook(hook);
      return at::nll_loss(scores, in.target);
    };
  };
  check_loss("as it is", with_hook([](const at::Tensor& grad) { return grad; }));
  check_loss("another", with_hook([](const at::Tensor& grad) { return grad * 3; }));
  check_loss("written", with_hook([](const at::Tensor& grad) { return grad.mul_(3); }));
  check_loss("written to its data", with_hook([](const at::Tensor& grad) {
               grad.variable_data().mul_(3);
               return grad;
             }));
  check_loss("written to its part", with_hook([](const at::Tensor& grad) {
               const at::NoGradGuard no_grad;
               (is_dtensor(grad) ? to_local(grad) : grad).mul_(3);
               return grad;
             }));
  check_loss("added to", [](const Inputs& in) {
    const at::Tensor scores = at::log_softmax(in.logits, 1);
    return at::nll_loss(scores, in.target) + scores.square().mean();
  });
  check_loss("of two losses", [](const Inputs& in) {
    const at::Tensor scores = at::log_softmax(in.logits, 1);
    return at::nll_loss(scores, in.target) * 2 +
           at::nll_loss(scores, in.target, in.weight, at::Reduction::Sum);
  });
}

/// What a rank wrote alone, the others do not know: it sums, they do not. Each rank reduces one
/// number a row here, of another loss; marks alone tell the messages apart.
TEST(Loss, AWriteOfOneRankAloneToTheGradientOfTheScoresIsAnErrorOfAll) {
  const auto body = [](int rank) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const Inputs plain = plain_inputs();
    const at::Tensor target = distribute_tensor(plain.target, mesh, {Replicate()});
    std::vector<at::Tensor> losses;
    for (const int writer : {0, 1}) {
      const at::Tensor logits = distribute_tensor(plain.logits, mesh, {Shard(1)}).requires_grad_();
      const at::Tensor scores = at::log_softmax(logits, 1);
      scores.register_hook([writer, rank](const at::Tensor& grad) {
        const at::NoGradGuard no_grad;
        if (rank == writer) to_local(grad).mul_(3);
      });
      losses.push_back(at::nll_loss(scores, target));
    }
    for (const at::Tensor& loss : losses) loss.backward();
  };
  EXPECT_THROW(test::run_ranks(2, body), PeerError);
}

/// Of 4,096 classes over eight ranks, forward and backward hold less than the logits of all ranks:
/// five copies of this rank's.
TEST(Loss, ThePeakOfMemoryDoesNotHoldAllLogits) {
  constexpr int64_t kMany = 4096, kPositions = 64, kLogitBytes = kMany * kPositions * 8;
  const at::Tensor logits = test_numbers({kPositions, kMany}, 1);
  const at::Tensor target = test_numbers({kPositions}, 2, kMany).to(at::kLong);
  const auto step = [](at::Tensor leaf, const at::Tensor& classes) {
    return peak_bytes_of([&] {
      at::cross_entropy_loss(leaf, classes, {}, at::Reduction::Mean, -100, 0.1).backward();
    });
  };
  EXPECT_GT(step(logits.clone().requires_grad_(), target), 2 * kLogitBytes);  // it counts
  comm::run_ranks(8, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=8");
    const at::Tensor leaf = distribute_tensor(logits, mesh, {Shard(1)}).requires_grad_();
    EXPECT_LT(step(leaf, distribute_tensor(target, mesh, {Replicate()})), kLogitBytes);
  });
}

}  // namespace loss_test
}  // namespace tessera::test
