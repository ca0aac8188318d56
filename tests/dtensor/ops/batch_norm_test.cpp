// Batch and instance norm of sharded inputs: outputs, gradients and running statistics are those of
// one rank, on every rank, and two numbers a channel travel.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/policy.h"
#include "tessera/module/distribute_module.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/parts.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace tessera {
namespace batch_norm_test {

using test::Instance;
using test::Results;
using test::test_numbers;
using testing::failures;
using testing::run_processes;
using testing::Scenario;

constexpr int kSteps = 3;

template <typename Holder, typename Options>
std::function<Instance()> of(Options options) {
  return [options] {
    Holder module(options);
    return Instance{module.ptr(), [module](const std::vector<at::Tensor>& in) mutable {
                      return module->forward(in[0]);
                    }};
  };
}

struct Norm {
  const char* name;
  std::function<Instance()> make;
  std::vector<int64_t> shape;
};

const std::vector<Norm>& norms() {
  using namespace torch::nn;  // NOLINT: a table of names
  static const std::vector<Norm> all = {
      {"BatchNorm1d of rows", of<BatchNorm1d>(BatchNorm1dOptions(6)), {8, 6}},
      {"BatchNorm1d", of<BatchNorm1d>(BatchNorm1dOptions(6)), {7, 6, 5}},
      {"BatchNorm2d", of<BatchNorm2d>(BatchNorm2dOptions(6)), {8, 6, 4, 3}},
      {"BatchNorm2d of few", of<BatchNorm2d>(BatchNorm2dOptions(3)), {3, 3, 5, 2}},
      {"BatchNorm3d", of<BatchNorm3d>(BatchNorm3dOptions(5)), {2, 5, 3, 2, 4}},
      {"not affine", of<BatchNorm2d>(BatchNorm2dOptions(6).affine(false)), {5, 6, 4, 3}},
      {"cumulative", of<BatchNorm2d>(BatchNorm2dOptions(6).momentum(std::nullopt)), {6, 6, 2, 3}},
      {"no statistics",
       of<BatchNorm2d>(BatchNorm2dOptions(6).track_running_stats(false)),
       {6, 6, 2, 3}},
      {"InstanceNorm1d",
       of<InstanceNorm1d>(InstanceNorm1dOptions(4).affine(true).track_running_stats(true)),
       {6, 4, 5}},
      {"InstanceNorm2d",
       of<InstanceNorm2d>(InstanceNorm2dOptions(4).affine(true).track_running_stats(true)),
       {5, 4, 4, 3}},
      {"InstanceNorm3d",
       of<InstanceNorm3d>(InstanceNorm3dOptions(6).track_running_stats(true)),
       {4, 6, 2, 2, 4}},
      {"InstanceNorm2d without statistics",
       of<InstanceNorm2d>(InstanceNorm2dOptions(4)),
       {5, 4, 4, 3}},
  };
  return all;
}

/// Three steps of training and a look in evaluation; `place` makes an input or a gradient.
using Place = std::function<at::Tensor(const at::Tensor& full)>;

Results train(const Norm& norm, const Instance& instance, const Place& place) {
  Results out;
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor x = place(test_numbers(norm.shape, 100 + step) * (step + 1) + step);
    const at::Tensor input = x.detach().requires_grad_();
    const at::Tensor y = instance.call({input});
    (y * place(test_numbers(norm.shape, 200 + step)).detach()).sum().backward();
    const std::string at = " of step " + std::to_string(step);
    out["output" + at] = y.detach();
    out["gradient" + at] = input.grad();
  }
  for (const auto& item : instance.module->named_parameters()) {
    out["gradient of " + item.key()] = item.value().grad();
  }
  instance.module->eval();
  const at::Tensor input = place(test_numbers(norm.shape, 300)).detach().requires_grad_();
  const at::Tensor y = instance.call({input});
  y.pow(2).sum().backward();
  out["output in evaluation"] = y.detach();
  out["gradient in evaluation"] = input.grad();
  for (const auto& item : instance.module->named_buffers()) out[item.key()] = item.value();
  return out;
}

Instance fresh(const Norm& norm) {
  Instance instance = norm.make();
  test::set_parameters(*instance.module, 1);
  return instance;
}

/// A tensor placed as the text says, Partial too.
at::Tensor placed(const at::Tensor& full, const DeviceMesh& mesh, const std::string& text) {
  const Sharding as(mesh, parse_placements(text), full.sizes().vec(), {.dtype = DType::f64});
  return from_local(test::part_of(full, as, *mesh.my_coordinate()), mesh, parse_placements(text),
                    {.shape = full.sizes().vec()});
}

void check(const Norm& norm, const DeviceMesh& mesh, const std::string& input,
           const std::string& parameters = "") {
  const Results expected = train(norm, fresh(norm), [](const at::Tensor& full) { return full; });
  const Instance instance = fresh(norm);
  test::shard_parameters(*instance.module, mesh, [&](const auto&, int64_t) {
    return parameters.empty() ? std::vector<Placement>(static_cast<size_t>(mesh.ndim()))
                              : parse_placements(parameters);
  });
  const Results got =
      train(norm, instance, [&](const at::Tensor& full) { return placed(full, mesh, input); });
  EXPECT_EQ(test::difference(got, expected), "")
      << norm.name << " on " << mesh.to_text() << ", input " << input << ", rank "
      << mesh.my_rank().value_or(-1);
}

bool has_dim(const Norm& norm, const std::string& placements) {
  for (const Placement& p : parse_placements(placements)) {
    if (p.is_sharded() && p.dim() >= static_cast<int>(norm.shape.size())) return false;
  }
  return true;
}

void check_all(std::string_view text, const std::vector<std::string>& inputs) {
  test::run_ranks(DeviceMesh::parse(text).size(), [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh(text);
    for (const Norm& norm : norms()) {
      for (const std::string& input : inputs) {
        if (has_dim(norm, input)) check(norm, mesh, input);
      }
    }
  });
}

TEST(BatchNorm, OnOneAxisIsThatOfOneRank) {
  check_all("dp=4", {"S0", "S1", "S2", "S3", "R", "P(sum)", "SS0(2)", "SS1(2)"});
}

TEST(BatchNorm, OnTwoAxesIsThatOfOneRank) {
  check_all("dp=2,tp=2",
            {"S0,S1", "S0,S2", "S0,S0", "S1,S1", "R,S1", "S0,R", "P(sum),S0", "S2,S1"});
}

TEST(BatchNorm, OnOneRankIsThePlainOne) { check_all("dp=1", {"S0", "S1"}); }

TEST(BatchNorm, TakesParametersAndStatisticsAsTheyArePlaced) {
  const Norm& norm = norms()[2];
  test::run_ranks(4, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=2,tp=2");
    for (const char* input : {"S0,S1", "S0,R", "S1,S0", "R,R"}) {
      for (const char* parameters : {"R,S0", "S0,S0", "S0,R"}) check(norm, mesh, input, parameters);
    }
  });
}

/// Buffers that are sharded over channels, beside inputs that are and that are not.
TEST(BatchNorm, KeepsThePlacementOfItsStatistics) {
  const Norm& norm = norms()[2];
  const Results expected = train(norm, fresh(norm), [](const at::Tensor& full) { return full; });
  test::run_ranks(4, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=2,tp=2");
    for (const char* input : {"S0,S1", "S0,R", "R,R", "R,S1"}) {
      const Instance instance = fresh(norm);
      for (const auto& item : instance.module->named_buffers()) {
        if (item.value().dim() == 1) {
          distribute_(item.value(), mesh, {Replicate(), Shard(0)});
        }
      }
      distribute_module(*instance.module, mesh);
      const Results got =
          train(norm, instance, [&](const at::Tensor& full) { return placed(full, mesh, input); });
      EXPECT_EQ(test::difference(got, expected), "") << input;
      EXPECT_EQ(sharding(instance.module->named_buffers()["running_mean"]).placements_text(),
                "R,S0");
    }
  });
}

TEST(BatchNorm, ReducesTwoNumbersAChannelAndKeepsItsPlacement) {
  test::run_ranks(4, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=4");
    torch::nn::BatchNorm2d norm(8);
    distribute_module(*norm, mesh);
    const at::Tensor full = at::arange(64 * 8 * 4).reshape({64, 8, 2, 2}).to(at::kFloat) * 1e-3;
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)}).requires_grad_();
    comm::Recorder recorder(*comm::current_world());
    const at::Tensor y = norm->forward(x);
    EXPECT_EQ(comm::expect_comm(recorder, "1 all_reduce on dp"), "");
    EXPECT_EQ(recorder.bytes(), 2 * 8 * static_cast<int64_t>(sizeof(double)));
    EXPECT_EQ(sharding(y).placements_text(), "S0");
    const at::Tensor grad = at::ones_like(y);
    recorder.clear();
    y.backward(grad);
    EXPECT_EQ(comm::expect_comm(recorder, "1 all_reduce on dp"), "");
    EXPECT_EQ(recorder.bytes(), 2 * 8 * static_cast<int64_t>(sizeof(float)));
    EXPECT_EQ(sharding(x.grad()).placements_text(), "S0");
    EXPECT_EQ(sharding(norm->weight.grad()).placements_text(), "R");
    recorder.clear();
    norm->eval();
    norm->forward(x);
    EXPECT_EQ(recorder.count(), 0) << "evaluation combines nothing";
    const CommPolicy quiet(ImplicitComm::forbid);
    norm->train();
    EXPECT_THROW(norm->forward(x), NotSupported);
  });
}

/// Statistics of a batch that is sharded over ranks: two numbers a channel, however large the
/// batch.
TEST(BatchNorm, OfInstancesReducesTwoNumbersAChannel) {
  test::run_ranks(4, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=4");
    torch::nn::InstanceNorm2d norm(
        torch::nn::InstanceNorm2dOptions(8).affine(true).track_running_stats(true));
    distribute_module(*norm, mesh);
    const at::Tensor full = at::arange(64 * 8 * 4).reshape({64, 8, 2, 2}).to(at::kFloat) * 1e-3;
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
    comm::Recorder recorder(*comm::current_world());
    const at::Tensor y = norm->forward(x);
    EXPECT_EQ(comm::expect_comm(recorder, "2 all_reduce on dp"), "");
    EXPECT_EQ(recorder.bytes(), 2 * 8 * static_cast<int64_t>(sizeof(float)));
    EXPECT_EQ(sharding(y).placements_text(), "S0");
  });
}

struct Mixed {
  at::ScalarType input;
  at::ScalarType statistics;
};

TEST(BatchNorm, OfNarrowNumbersKeepsItsStatisticsAsTheyAre) {
  for (const Mixed& mixed : {Mixed{at::kBFloat16, at::kFloat}, Mixed{at::kHalf, at::kFloat},
                             Mixed{at::kBFloat16, at::kBFloat16}, Mixed{at::kFloat, at::kFloat}}) {
    const at::Tensor full = (test_numbers({10, 4, 3, 3}, 5) * 3 + 20).to(mixed.input);
    const auto run = [&](const at::Tensor& x, const at::Tensor& w, const at::Tensor& mean,
                         const at::Tensor& var) {
      const auto [y, save_mean, save_invstd] =
          at::native_batch_norm(x, w, w, mean, var, true, 0.1, 1e-5);
      return std::vector<at::Tensor>{y, save_mean, save_invstd, mean, var};
    };
    const at::Tensor w = (test_numbers({4}, 6) + 2).to(mixed.statistics);
    auto want = run(full, w, at::zeros({4}, mixed.statistics), at::ones({4}, mixed.statistics));
    // One rank would normalize with statistics that it has rounded.
    want[0] = at::batch_norm(full.to(at::kFloat), w.to(at::kFloat), w.to(at::kFloat), {}, {}, true,
                             0.1, 1e-5, false)
                  .to(mixed.input);
    const double tolerance = at::isReducedFloatingType(mixed.statistics) ? 2e-2 : 1e-4;
    test::run_ranks(4, [&](int) {
      const DeviceMesh mesh = comm::init_device_mesh("dp=4");
      const auto whole = [&](const at::Tensor& t) {
        return distribute_tensor(t, mesh, {Replicate()});
      };
      const auto got =
          run(distribute_tensor(full, mesh, {Shard(0)}), whole(w),
              whole(at::zeros({4}, mixed.statistics)), whole(at::ones({4}, mixed.statistics)));
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].scalar_type(), want[i].scalar_type()) << i;
        const double rtol = i == 0 && mixed.input != at::kFloat ? 4e-2 : tolerance;
        EXPECT_TRUE(
            at::allclose(full_tensor(got[i]).to(at::kDouble), want[i].to(at::kDouble), rtol, rtol))
            << "result " << i << " of " << c10::toString(mixed.input);
      }
    });
  }
}

/// The mean is large beside the deviations: a plain sum of squares would lose them.
TEST(BatchNorm, DoesNotCancel) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const double mean = dtype == at::kFloat ? 1e3 : 1e8;
    const at::Tensor full = (test_numbers({16, 4}, 7) + mean).to(dtype);
    const at::Tensor want = at::batch_norm(full, {}, {}, {}, {}, true, 0.1, 0, false);
    test::run_ranks(4, [&](int) {
      const DeviceMesh mesh = comm::init_device_mesh("dp=4");
      const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
      const at::Tensor got = at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 0, false);
      EXPECT_TRUE(at::allclose(full_tensor(got), want, 1e-3, 1e-3))
          << (full_tensor(got) - want).abs().max();
    });
  }
}

TEST(BatchNorm, HasSecondDerivatives) {
  const at::Tensor full = test_numbers({6, 4, 3}, 8), weight = test_numbers({4}, 9);
  const auto second = [](const at::Tensor& x, const at::Tensor& w) {
    const at::Tensor y = at::batch_norm(x, w, {}, {}, {}, true, 0.1, 1e-5, false);
    const auto first = torch::autograd::grad({y.pow(3).sum()}, {x, w}, {}, true, true);
    (first[0].pow(2).sum() + first[1].pow(2).sum()).backward();
    return std::vector<at::Tensor>{x.grad(), w.grad()};
  };
  const auto want = second(full.clone().requires_grad_(), weight.clone().requires_grad_());
  test::run_ranks(4, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=4");
    for (const char* input : {"S0", "S1", "S2"}) {
      const auto got =
          second(distribute_tensor(full, mesh, parse_placements(input)).requires_grad_(),
                 distribute_tensor(weight, mesh, {Replicate()}).requires_grad_());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(at::allclose(full_tensor(got[i]), want[i])) << input << ", " << i;
      }
    }
  });
}

TEST(BatchNorm, KeepsChannelsLast) {
  const at::Tensor full = test_numbers({8, 6, 4, 2}, 10);
  const at::Tensor want = at::batch_norm(full, {}, {}, {}, {}, true, 0.1, 1e-5, false);
  test::run_ranks(2, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=2");
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)})
                             .contiguous(at::MemoryFormat::ChannelsLast)
                             .requires_grad_();
    const at::Tensor y = at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false);
    EXPECT_TRUE(y.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(at::allclose(full_tensor(y.detach()), want));
    y.pow(2).sum().backward();
    EXPECT_TRUE(x.grad().is_contiguous(at::MemoryFormat::ChannelsLast));
  });
}

TEST(BatchNorm, PassesBatchesThatAreEmpty) {
  test::run_ranks(2, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=2");
    const at::Tensor x = distribute_tensor(at::empty({0, 3, 2}), mesh, {Shard(0)}).requires_grad_();
    const at::Tensor y = at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false);
    EXPECT_EQ(y.sizes(), x.sizes());
    y.sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  });
}

/// A mesh of two of the three ranks: the third passes through.
TEST(BatchNorm, LeavesRanksOutsideTheMeshAlone) {
  const Norm& norm = norms()[2];
  const Results expected = train(norm, fresh(norm), [](const at::Tensor& full) { return full; });
  test::run_ranks(3, [&](int rank) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=2");
    const Instance instance = fresh(norm);
    distribute_module(*instance.module, mesh);
    const Results got = train(norm, instance, [&](const at::Tensor& full) {
      return distribute_tensor(full, mesh, {Shard(0)});
    });
    if (rank < 2) {
      EXPECT_EQ(test::difference(got, expected), "");
    }
  });
}

const Scenario kProcesses("norms on two", [] {
  const DeviceMesh mesh = comm::init_device_mesh("dp=2");
  for (const Norm& norm : norms()) {
    for (const char* input : {"S0", "S1", "S2"}) {
      if (has_dim(norm, input)) check(norm, mesh, input);
    }
  }
});

TEST(BatchNorm, BetweenProcessesIsThatOfOneRank) {
  EXPECT_EQ(failures(run_processes(kProcesses, {.size = 2})), "");
}

}  // namespace batch_norm_test
}  // namespace tessera
