// Convolutions over sharded spatial dims against the plain op, with gradients, in float64.
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include "tessera/base/errors.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/ops/windows/convolution_shape.h"
#include "tessera/dtensor/policy.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/parts.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace tessera {
namespace convolution_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::whole_numbers;

struct Case {
  std::vector<int64_t> input;
  std::vector<int64_t> weight;
  dtensor::ConvolutionArgs args;
  bool bias = true;

  std::string to_text() const {
    return join_text("input ", shape_text(input), ", weight ", shape_text(weight), ", stride ",
                     list_text(args.stride), ", padding ", list_text(args.padding), ", dilation ",
                     list_text(args.dilation), ", output_padding ", list_text(args.output_padding),
                     args.transposed ? ", transposed" : "", ", groups ", args.groups,
                     bias ? "" : ", no bias");
  }
  int64_t out_channels() const { return args.transposed ? weight[1] * args.groups : weight[0]; }
};

at::Tensor convolve(const Case& c, const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  const auto bias = c.bias ? std::optional<at::Tensor>(b) : std::nullopt;
  return at::convolution(x, w, bias, c.args.stride, c.args.padding, c.args.dilation,
                         c.args.transposed, c.args.output_padding, c.args.groups);
}

/// Output and gradients, of plain tensors or of sharded ones.
std::vector<at::Tensor> results(const Case& c, const at::Tensor& x, const at::Tensor& w,
                                const at::Tensor& b) {
  const at::Tensor y = convolve(c, x, w, b);
  (y * y).sum().backward();
  std::vector<at::Tensor> out = {y.detach(), x.grad(), w.grad()};
  if (c.bias) out.push_back(b.grad());
  return out;
}

/// Runs a case with these placements of input, weight and bias, and checks the placements of the
/// output.
void check(const Case& c, const DeviceMesh& mesh, const std::string& of_input,
           const std::string& of_weight, const std::string& of_bias,
           const std::string& of_output = "") {
  SCOPED_TRACE(c.to_text() + " : " + of_input + " ; " + of_weight + " ; " + of_bias);
  const at::Tensor x = whole_numbers(c.input, 1).requires_grad_();
  const at::Tensor w = whole_numbers(c.weight, 2).requires_grad_();
  const at::Tensor b = whole_numbers({c.out_channels()}, 3).requires_grad_();
  const auto want = results(c, x, w, b);
  const auto spread = [&](const at::Tensor& full, const std::string& placements) {
    const auto as = Sharding::parse(
        join_text(mesh, " : ", placements, " : ", shape_text(full.sizes()), " f64"));
    const std::vector<Placement> whole(static_cast<size_t>(mesh.ndim()));
    return redistribute(distribute_tensor(full.detach(), mesh, whole), as.with_mesh(mesh))
        .requires_grad_();
  };
  const auto got = results(c, spread(x, of_input), spread(w, of_weight), spread(b, of_bias));
  if (!of_output.empty()) {
    EXPECT_EQ(sharding(got[0]).placements_text(), of_output);
  }
  const char* names[] = {"output", "input's gradient", "weight's gradient", "bias's gradient"};
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].sizes(), want[i].sizes()) << names[i];
    EXPECT_TRUE(at::allclose(full_tensor(got[i]), want[i], 1e-10, 1e-10)) << names[i];
  }
}

Case conv(std::vector<int64_t> input, std::vector<int64_t> weight, int64_t stride, int64_t padding,
          int64_t dilation = 1, int64_t groups = 1) {
  return {.input = std::move(input),
          .weight = std::move(weight),
          .args = {.stride = {stride},
                   .padding = {padding},
                   .dilation = {dilation},
                   .output_padding = {0},
                   .groups = groups}};
}

Case transposed(Case c, int64_t output_padding = 0) {
  c.args.transposed = true;
  c.args.output_padding = {output_padding};
  return c;
}

TEST(Convolution, OverShardedSpaceKeepsTheShard) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("sp=4");
    check(conv({2, 3, 16, 6}, {4, 3, 3, 3}, 1, 1), mesh, "S2", "R", "R", "S2");
    check(conv({2, 3, 6, 16}, {4, 3, 3, 3}, 1, 1), mesh, "S3", "R", "R", "S3");
    check(conv({2, 3, 16}, {4, 3, 3}, 1, 1), mesh, "S2", "R", "R", "S2");
    check(conv({2, 3, 4, 9, 5}, {4, 3, 3, 3, 2}, 1, 1), mesh, "S3", "R", "R", "S3");
  });
}

TEST(Convolution, AnyStridePaddingDilationAndGroups) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("sp=4");
    for (const int64_t size : {16, 13, 9}) {
      for (const int64_t stride : {1, 2, 3, 5}) {
        for (const int64_t padding : {0, 1, 4}) {
          for (const int64_t dilation : {1, 2}) {
            check(conv({1, 2, size}, {2, 2, 4}, stride, padding, dilation), mesh, "S2", "R", "R");
          }
        }
      }
    }
    check(conv({2, 4, 10, 3}, {6, 2, 3, 3}, 2, 1, 1, 2), mesh, "S2", "R", "R", "S2");
    check(conv({2, 4, 10, 3}, {4, 1, 3, 3}, 1, 1, 1, 4), mesh, "S2", "R", "R", "S2");
    Case no_bias = conv({2, 4, 10, 3}, {6, 4, 3, 3}, 1, 1);
    no_bias.bias = false;
    check(no_bias, mesh, "S2", "R", "R");
  });
}

TEST(Convolution, HalosReachOverSeveralRanksAndEmptyParts) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("sp=4");
    check(conv({1, 2, 8}, {2, 2, 7}, 1, 3), mesh, "S2", "R", "R", "S2");  // wider than two parts
    check(conv({1, 2, 5}, {2, 2, 3}, 1, 1), mesh, "S2", "R", "R", "S2");  // 2,2,1,0
    check(conv({1, 2, 3}, {2, 2, 3}, 1, 1), mesh, "S2", "R", "R", "S2");  // 1,1,1,0
    check(conv({1, 2, 6}, {2, 2, 6}, 1, 0), mesh, "S2", "R", "R", "S2");  // one output
    check(conv({1, 2, 12}, {2, 2, 3}, 1, 1), mesh, "SS2(2)", "R", "R");   // strided
    check(conv({1, 2, 10}, {2, 2, 3}, 1, 1), mesh, "S2[1,2,3,4]", "R", "R");
    check(conv({1, 2, 10}, {2, 2, 3}, 1, 1), mesh, "S2[0,7,0,3]", "R", "R");
  });
}

TEST(Convolution, SpaceBatchAndChannelsAtOnce) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("a=2,b=2");
    const Case c = conv({3, 4, 9, 7}, {6, 4, 3, 3}, 1, 1);
    check(c, mesh, "S2,S3", "R,R", "R,R", "S2,S3");  // corners
    check(c, mesh, "S2,S2", "R,R", "R,R", "S2,S2");
    check(c, mesh, "S2#1,S2#0", "R,R", "R,R", "S2#1,S2#0");
    check(c, mesh, "S0,S2", "R,R", "R,R", "S0,S2");
    check(c, mesh, "S2,R", "R,S0", "R,S0", "S2,S1");      // output channels
    check(c, mesh, "S2,S1", "R,S1", "R,R", "S2,P(sum)");  // addends
    check(c, mesh, "S2,S1", "R,R", "R,R", "S2,P(sum)");   // of the weight, a slice is taken
    check(c, mesh, "S2,R", "S2,S3", "S0,R", "S2,R");  // a kernel sharded in space is put together
    check(transposed(conv({3, 4, 9, 7}, {4, 6, 3, 3}, 2, 1)), mesh, "S2,R", "R,S1", "R,S0",
          "S2,S1");
    check(transposed(conv({3, 4, 9, 7}, {4, 6, 3, 3}, 2, 1)), mesh, "S3,S1", "R,S0", "R,R",
          "S3,P(sum)");
  });
}

TEST(Convolution, TransposedConvolutionsToo) {
  run_ranks(3, [](int) {
    const DeviceMesh mesh = init_device_mesh("sp=3");
    for (const int64_t size : {3, 7, 8}) {
      for (const int64_t stride : {1, 2, 4}) {
        for (const int64_t kernel : {1, 2, 5}) {
          for (const int64_t dilation : {1, 3}) {
            for (const int64_t padding : {0, 1, 2}) {
              const int64_t reach = dilation * (kernel - 1);
              if ((size - 1) * stride - 2 * padding + reach < 0) continue;
              check(transposed(conv({1, 2, size}, {2, 3, kernel}, stride, padding, dilation),
                               stride - 1),
                    mesh, "S2", "R", "R", "S2");
            }
          }
        }
      }
    }
    check(transposed(conv({2, 4, 6, 5}, {4, 3, 3, 3}, 2, 1, 1, 2), 1), mesh, "S2", "R", "R");
  });
}

TEST(Convolution, RandomCasesMatch) {
  test::for_each_seed(40, [](test::Rng& rng) {
    const int ranks = rng.int_between(2, 4);
    const int dims = rng.int_between(1, 3);
    Case c{.input = {rng.between(1, 3), 4}, .weight = {}, .args = {}};
    c.args.groups = rng.chance(30) ? 2 : 1;
    c.args.transposed = rng.chance(40);
    c.weight = {4, 4 / c.args.groups};
    for (int d = 0; d < dims; ++d) {
      c.weight.push_back(rng.between(1, 4));
      c.args.stride.push_back(rng.between(1, 3));
      c.args.dilation.push_back(rng.between(1, 2));
      c.args.padding.push_back(rng.between(0, 2));
      c.args.output_padding.push_back(c.args.transposed ? rng.between(0, c.args.stride.back() - 1)
                                                        : 0);
      c.input.push_back(rng.between(8, 12));
    }
    const int dim = 2 + rng.int_between(0, dims - 1);
    const std::string placement =
        rng.chance(30) ? join_text("SS", dim, "(2)") : join_text("S", dim);
    run_ranks(ranks, [&](int) {
      check(c, init_device_mesh(join_text("sp=", ranks)), placement, "R", "R");
    });
  });
}

TEST(Convolution, ExchangesHalosAndNothingElse) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("sp=4");
    const at::Tensor x = distribute_tensor(whole_numbers({1, 2, 16, 6}, 1), mesh, {Shard(2)});
    const at::Tensor w = distribute_tensor(whole_numbers({2, 2, 3, 3}, 2), mesh, {Replicate()});
    const at::Tensor one = distribute_tensor(whole_numbers({2, 2, 1, 3}, 2), mesh, {Replicate()});
    comm::Recorder recorder(*comm::current_world());
    const CommPolicy explicit_only(ImplicitComm::forbid);
    at::conv2d(x, one);
    EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "") << "the kernel reaches over no border";
    at::conv2d(x, w, {}, 1, 1);
    EXPECT_EQ(comm::expect_comm(recorder, "1 all_to_all, 0 implicit"), "");
    // Two rows of a middle rank travel, of 2 channels and 6 columns, in doubles.
    EXPECT_LE(recorder.bytes(), 2 * 2 * 6 * 8);
    const at::Tensor sharded = distribute_tensor(whole_numbers({2, 2, 3, 3}, 2), mesh, {Shard(0)});
    EXPECT_THROW(at::conv2d(x, sharded), NotSupported) << "a weight to gather is implicit";
  });
}

TEST(Convolution, ShardedBatchesAndChannelsNeedNoMessage) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const CommPolicy explicit_only(ImplicitComm::forbid);
    const at::Tensor x = whole_numbers({4, 2, 6, 6}, 1);
    const at::Tensor w = whole_numbers({4, 2, 3, 3}, 2);
    const auto on = [&](const at::Tensor& full, Placement p) {
      return distribute_tensor(full, mesh, {p});
    };
    EXPECT_EQ(sharding(at::conv2d(on(x, Shard(0)), on(w, Replicate()))).placements_text(), "S0");
    EXPECT_EQ(sharding(at::conv2d(on(x, Replicate()), on(w, Shard(0)))).placements_text(), "S1");
    EXPECT_EQ(sharding(at::conv2d(on(x, Shard(1)), on(w, Shard(1)))).placements_text(), "P(sum)");
  });
}

TEST(Convolution, SecondDerivativesMatch) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("sp=2");
    const auto penalty = [](const at::Tensor& x, const at::Tensor& w) {
      const at::Tensor y = at::conv2d(x, w, {}, 1, 1).pow(3).sum();
      const auto first = torch::autograd::grad({y}, {x}, {}, true, true);
      first[0].pow(2).sum().backward();
    };
    const at::Tensor x = (whole_numbers({1, 2, 8, 4}, 1) / 10).requires_grad_();
    const at::Tensor w = (whole_numbers({2, 2, 3, 3}, 2) / 10).requires_grad_();
    penalty(x, w);
    const at::Tensor dx = distribute_tensor(x.detach(), mesh, {Shard(2)}).requires_grad_();
    const at::Tensor dw = distribute_tensor(w.detach(), mesh, {Replicate()}).requires_grad_();
    penalty(dx, dw);
    EXPECT_TRUE(at::allclose(full_tensor(dx.grad()), x.grad(), 1e-10, 1e-10));
    EXPECT_TRUE(at::allclose(full_tensor(dw.grad()), w.grad(), 1e-10, 1e-10));
  });
}

TEST(Convolution, ChannelsLastStaysChannelsLast) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("sp=2");
    const at::Tensor full =
        whole_numbers({2, 3, 8, 6}, 1).contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor w = whole_numbers({4, 3, 3, 3}, 2);
    const at::Tensor x = from_local(
        full.narrow(2, 4 * *mesh.my_rank(), 4).contiguous(at::MemoryFormat::ChannelsLast), mesh,
        {Shard(2)}, {.shape = full.sizes().vec(), .stride = full.strides().vec()});
    const at::Tensor y = at::conv2d(x, distribute_tensor(w, mesh, {Replicate()}), {}, 1, 1);
    EXPECT_TRUE(y.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(to_local(y).is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(at::allclose(full_tensor(y), at::conv2d(full, w, {}, 1, 1)));
  });
}

TEST(Convolution, OneTensorWhoseElementsShareMemoryIsInputAndWeight) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("sp=2");
    for (const bool expanded : {true, false}) {
      for (const Placement& placement : {Placement(Shard(0)), Placement(Replicate())}) {
        const at::Tensor plain = whole_numbers({8}, 1).requires_grad_();
        const at::Tensor given = distribute_tensor(plain.detach(), mesh, {placement});
        const at::Tensor x = given.detach().requires_grad_();
        const auto views = [&](const at::Tensor& of) {
          return expanded ? of.expand({3, 3, 8})
                          : of.expand({3, 3, 8}).unfold(2, 4, 1).select(2, 1);
        };
        const at::Tensor want = at::conv1d(views(plain), views(plain), {}, 1, 1);
        (want * want).sum().backward();
        const at::Tensor y = at::conv1d(views(x), views(x), {}, 1, 1);
        (y * y).sum().backward();
        EXPECT_TRUE(at::allclose(full_tensor(y), want));
        EXPECT_TRUE(at::allclose(full_tensor(x.grad()), plain.grad()));
      }
    }
  });
}

TEST(Convolution, WithoutImagesOrChannelsIsAsOfPlainTensors) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("sp=2");
    for (const char* input : {"R", "S0", "S1", "S2"}) {
      for (const char* weight : {"R", "S0", "S1", "S2"}) {
        for (const char* bias : {"R", "S0"}) {
          check(conv({3, 0, 5}, {4, 0, 3}, 1, 1), mesh, input, weight, bias);
          check(conv({0, 2, 5}, {4, 2, 3}, 1, 1), mesh, input, weight, bias);
          check(conv({3, 0, 6}, {4, 0, 0}, 2, 1, 2, 2), mesh, input, weight, bias);
        }
      }
    }
    check(transposed(conv({0, 2, 1}, {2, 3, 2}, 1, 1)), mesh, "S0", "R", "R");
  });
}

TEST(Convolution, BadCallsAreRefusedOnEveryRankBeforeAnythingMoves) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("sp=2");
    const DeviceMesh other = init_device_mesh("other=2");
    const auto weight = [](const DeviceMesh& on, std::vector<int64_t> shape) {
      return distribute_tensor(whole_numbers(shape, 2), on, {Replicate()});
    };
    const at::Tensor x = distribute_tensor(whole_numbers({1, 2, 8}, 1), mesh, {Shard(2)});
    const at::Tensor channels = weight(mesh, {2, 3, 3});
    const at::Tensor kernel = weight(mesh, {2, 2, 9});
    const at::Tensor fits = weight(mesh, {2, 2, 3});
    const at::Tensor elsewhere = weight(other, {2, 2, 3});
    const at::Tensor narrow = fits.to(at::kFloat);
    const at::Tensor bias = weight(mesh, {3});
    const at::Tensor empty_kernel = weight(mesh, {2, 2, 0});
    const at::Tensor no_space =
        distribute_tensor(at::zeros({1, 2, 0}, at::kDouble), mesh, {Shard(2)});
    comm::Recorder recorder(*comm::current_world());
    EXPECT_THROW(at::conv1d(x, channels), InvalidArgument);
    EXPECT_THROW(at::conv1d(x, kernel), InvalidArgument);
    EXPECT_THROW(at::conv1d(x, fits, {}, 0), InvalidArgument) << "stride";
    EXPECT_THROW(at::conv1d(x, whole_numbers({2, 2, 3}, 2)), InvalidArgument) << "a plain weight";
    EXPECT_THROW(at::conv1d(x, elsewhere), InvalidArgument);
    EXPECT_THROW(at::conv1d(x, narrow), InvalidArgument) << "another dtype";
    EXPECT_THROW(at::conv1d(x, fits, bias), InvalidArgument);
    EXPECT_THROW(at::conv1d(x, empty_kernel), InvalidArgument);
    EXPECT_THROW(at::conv1d(no_space, fits, {}, 1, 2), InvalidArgument);
    EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "");
  });
}

const testing::Scenario kHalo("halo", [] {
  const DeviceMesh mesh = init_device_mesh("a=2,b=2");
  check(conv({3, 4, 9, 7}, {6, 4, 3, 3}, 1, 1), mesh, "S2,S3", "R,R", "R,R", "S2,S3");
  check(conv({1, 2, 5}, {2, 2, 3}, 1, 1), mesh, "S2,S2", "R,R", "R,R", "S2,S2");
  check(transposed(conv({3, 4, 9, 7}, {4, 6, 3, 3}, 2, 1), 1), mesh, "S3,S0", "R,R", "R,R");
});

TEST(Convolution, RunsOnProcessesToo) {
  EXPECT_EQ(testing::failures(testing::run_processes(kHalo, {.size = 4})), "");
}

/// Every output that a window makes must be made of inputs within it, by definition.
TEST(ConvolutionWindow, HoldsAllThatItsOutputsAreMadeOf) {
  for (const bool is_transposed : {false, true}) {
    for (int64_t stride = 1; stride <= 4; ++stride) {
      for (int64_t dilation = 1; dilation <= 3; ++dilation) {
        for (int64_t kernel = 1; kernel <= 4; ++kernel) {
          for (int64_t padding = 0; padding <= 3; ++padding) {
            const int64_t size = 7;
            dtensor::ConvolutionArgs args{.stride = {stride},
                                          .padding = {padding},
                                          .dilation = {dilation},
                                          .output_padding = {is_transposed ? stride - 1 : 0},
                                          .transposed = is_transposed};
            const std::vector<int64_t> input = {1, 1, size};
            const std::vector<int64_t> weight = {1, 1, kernel};
            const int64_t room = size + 2 * padding - dilation * (kernel - 1);
            if (is_transposed ? (size - 1) * stride - 2 * padding + dilation * (kernel - 1) < 0
                              : room < 1) {
              continue;
            }
            const int64_t outputs = dtensor::convolution_shape(input, weight, args)[2];
            for (int64_t begin = 0; begin < outputs; ++begin) {
              for (int64_t end = begin + 1; end <= outputs; ++end) {
                const auto w = dtensor::window_of(args, 0, kernel, size, {begin, end});
                ASSERT_EQ(w.keep, end - begin);
                ASSERT_LE(w.skip + w.keep, w.made);
                ASSERT_TRUE(w.beyond == 0 || w.beyond < std::max(stride, dilation));
                for (int64_t o = begin; o < end; ++o) {
                  for (int64_t k = 0; k < kernel; ++k) {
                    const int64_t at = is_transposed ? o + padding - k * dilation
                                                     : o * stride - padding + k * dilation;
                    if (is_transposed && at % stride != 0) continue;
                    const int64_t i = is_transposed ? at / stride : at;
                    if (i < 0 || i >= size) continue;
                    ASSERT_TRUE(i >= w.input.begin && i < w.input.end);
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace convolution_test
}  // namespace tessera
