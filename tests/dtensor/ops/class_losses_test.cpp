#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/nll_loss2d.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/policy.h"
#include "tessera/observe/recorder.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"

/// Losses of scores whose classes are sharded: over one axis and two, evenly or not, in one piece a
/// rank or several.
namespace tessera {
namespace class_losses_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::spread;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kIgnored = 2;

/// Equal on all ranks.
at::Tensor numbers(const std::vector<int64_t>& shape) {
  const int64_t count = c10::multiply_integers(shape);
  return at::arange(count, at::kDouble).mul_(1.7).sin_().mul_(3).view(shape);
}
at::Tensor classes(const std::vector<int64_t>& shape, int64_t below) {
  const int64_t count = c10::multiply_integers(shape);
  return at::arange(count, at::kLong).mul_(5).remainder_(below).view(shape);
}

using Loss = std::function<at::Tensor(const at::Tensor& scores, const at::Tensor& target,
                                      const at::Tensor& weight)>;

struct Result {
  at::Tensor loss, grad;
};

Result run(const Loss& loss, const at::Tensor& scores, const at::Tensor& target,
           const at::Tensor& weight) {
  const at::Tensor leaf = scores.detach().requires_grad_();
  const at::Tensor value = loss(leaf, target, weight);
  (value * value).sum().backward();
  const auto full = [](const at::Tensor& t) { return is_dtensor(t) ? full_tensor(t) : t; };
  return {full(value.detach()), full(leaf.grad())};
}

/// The same loss and gradient as the plain op's, and the scores are nowhere gathered.
void check(const Loss& loss, const at::Tensor& scores, const at::Tensor& target,
           const std::string& placements, const std::string& rows, const DeviceMesh& mesh) {
  const at::Tensor weight = numbers({scores.size(1)}).abs() + 0.1;
  const Result want = run(loss, scores, target, weight);
  const at::Tensor sharded = spread(scores, mesh, placements);
  const at::Tensor sharded_target = spread(target, mesh, rows);
  const std::string whole = mesh.ndim() == 1 ? "R" : "R,R";
  const at::Tensor sharded_weight = spread(weight, mesh, whole);
  const Result got = run(loss, sharded, sharded_target, sharded_weight);
  const std::string what = placements + " of " + sharding(sharded).to_text();
  EXPECT_TRUE(at::allclose(got.loss, want.loss, 1e-10, 1e-10)) << what << got.loss << want.loss;
  EXPECT_TRUE(at::allclose(got.grad, want.grad, 1e-10, 1e-10)) << what << got.grad << want.grad;
  comm::Recorder recorder(*comm::current_world());
  loss(sharded.detach(), sharded_target, sharded_weight);
  EXPECT_EQ(recorder.count(comm::CommOp::all_gather), 0) << what << recorder.to_text();
  EXPECT_EQ(recorder.count(comm::CommOp::all_to_all), 0) << what << recorder.to_text();
}

Loss cross_entropy(int64_t reduction, bool weighted) {
  return [=](const at::Tensor& scores, const at::Tensor& target, const at::Tensor& weight) {
    return at::cross_entropy_loss(scores, target,
                                  weighted ? std::optional<at::Tensor>(weight) : std::nullopt,
                                  reduction, kIgnored);
  };
}

const std::vector<int64_t> kReductions = {at::Reduction::None, at::Reduction::Mean,
                                          at::Reduction::Sum};

TEST(ClassLosses, OverTwoAxes) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("a=2,b=2");
    const at::Tensor scores = numbers({6, 11});
    const at::Tensor target = classes({6}, 11);
    for (const int64_t reduction : kReductions) {
      for (const bool weighted : {false, true}) {
        const Loss loss = cross_entropy(reduction, weighted);
        check(loss, scores, target, "S1,S1", "R,R", mesh);
        check(loss, scores, target, "S0,S1", "S0,R", mesh);
        check(loss, scores, target, "S1,S0", "R,S0", mesh);
      }
    }
  });
}

TEST(ClassLosses, OfClassesInSeveralPieces) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("a=2,b=2");
    const at::Tensor scores = numbers({5, 12});
    const at::Tensor target = classes({5}, 12);
    for (const int64_t reduction : kReductions) {
      const Loss loss = cross_entropy(reduction, true);
      for (const char* placements : {"SS1(2),R", "SS1(3),S1", "S1[5,7],R", "S1[12,0],R"}) {
        check(loss, scores, target, placements, "R,R", mesh);
      }
      check(loss, scores, target, "S0,S1[3,9]", "S0,R", mesh);
    }
  });
}

TEST(ClassLosses, OfImages) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("a=2,b=2");
    const at::Tensor scores = numbers({3, 7, 4, 2});
    const at::Tensor target = classes({3, 4, 2}, 7);
    for (const int64_t reduction : kReductions) {
      const Loss loss = cross_entropy(reduction, true);
      check(loss, scores, target, "R,S1", "R,R", mesh);
      check(loss, scores, target, "S0,S1", "S0,R", mesh);
      check(loss, scores, target, "S1,S2", "R,S1", mesh);
      check(loss, scores, target, "S1,S1", "R,R", mesh);
    }
  });
}

TEST(ClassLosses, WithMoreRanksThanClasses) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor scores = numbers({5, 3});
    const at::Tensor target = classes({5}, 2);
    for (const int64_t reduction : kReductions) {
      check(cross_entropy(reduction, false), scores, target, "S1", "R", mesh);
    }
  });
}

TEST(ClassLosses, OnOneRank) {
  run_ranks(1, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=1");
    const at::Tensor scores = numbers({5, 3});
    for (const int64_t reduction : kReductions) {
      check(cross_entropy(reduction, true), scores, classes({5}, 2), "S1", "R", mesh);
    }
  });
}

/// Of bfloat16 scores the sums are accumulated in float32.
TEST(ClassLosses, OfNarrowTypes) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor scores = numbers({4, 64}).to(at::kBFloat16);
    const at::Tensor got = at::_log_softmax(spread(scores, mesh, "S1"), 1, false);
    EXPECT_EQ(got.scalar_type(), at::kBFloat16);
    const at::Tensor want = at::_log_softmax(scores.to(at::kFloat), 1, false);
    EXPECT_TRUE(at::allclose(full_tensor(got).to(at::kFloat), want, 1e-2, 1e-2));
  });
}

/// As the plain ops treat infinite scores.
TEST(ClassLosses, OfInfiniteScores) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    at::Tensor scores = numbers({4, 6});
    scores[0].fill_(-kInfinity);
    scores[1][5] = -kInfinity;
    scores[2][0] = kInfinity;
    const at::Tensor x = spread(scores, mesh, "S1");
    const auto same = [](const at::Tensor& a, const at::Tensor& b) {
      return at::allclose(full_tensor(a), b, 1e-12, 1e-12, /*equal_nan=*/true);
    };
    EXPECT_TRUE(same(at::logsumexp(x, {1}), at::logsumexp(scores, {1})));
    EXPECT_TRUE(same(at::_log_softmax(x, 1, false), at::_log_softmax(scores, 1, false)));
  });
}

TEST(ClassLosses, LogSumExpOverSeveralDims) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("a=2,b=2");
    const at::Tensor full = numbers({3, 5, 4});
    const std::vector<std::vector<int64_t>> all_dims = {{0}, {1, 2}, {0, 1, 2}, {-1}};
    for (const char* placements : {"S1,S2", "S0,S1", "S1,S1", "SS2(2),R"}) {
      const at::Tensor x = spread(full, mesh, placements);
      for (const auto& dims : all_dims) {
        for (const bool keepdim : {false, true}) {
          const at::Tensor got = at::logsumexp(x, dims, keepdim);
          EXPECT_TRUE(at::allclose(full_tensor(got), at::logsumexp(full, dims, keepdim)))
              << placements;
        }
      }
    }
  });
}

TEST(ClassLosses, ATargetThatIsNoClassIsAnError) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor scores = spread(numbers({4, 6}), mesh, "S1");
    const at::Tensor target = spread(at::full({4}, 6, at::kLong), mesh, "R");
    EXPECT_THROW(at::nll_loss(scores, target), c10::Error);
  });
}

TEST(ClassLosses, CommunicateImplicitlyForwardAndNotInTheGradientOfThePick) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor scores = spread(numbers({4, 6}), mesh, "S1").requires_grad_();
    const at::Tensor target = spread(classes({4}, 6), mesh, "R");
    const at::Tensor loss = at::nll_loss(scores, target);
    const CommPolicy explicit_only(ImplicitComm::forbid);
    EXPECT_THROW(at::nll_loss(scores, target), NotSupported);
    EXPECT_THROW(at::_log_softmax(scores, 1, false), NotSupported);
    EXPECT_THROW(at::logsumexp(scores, {1}), NotSupported);
    EXPECT_NO_THROW(loss.backward());
    EXPECT_EQ(sharding(scores.grad()).placements_text(), "S1");
  });
}

}  // namespace class_losses_test
}  // namespace tessera
