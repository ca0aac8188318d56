#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/watched_call.h"

/// Operators that another implementation of sharded tensors gets wrong without saying so: gradients
/// four times too large on four ranks, gradients that are not finite, convolutions of one and three
/// dims. Values and gradients are those of the plain operator, for even and uneven shards.
namespace tessera::test {
namespace peer_operators_test {

constexpr const char* kAnything = "...";

struct Placed {
  std::vector<int64_t> shape;
  const char* placements;
};

const std::vector<Placed> kPlaced = {
    {{8, 6}, "S0"}, {{8, 6}, "S1"}, {{7, 6}, "S0"}, {{2, 6}, "S0"}, {{8, 6}, "R"}};

using Loss = std::function<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t reduction)>;

void check_loss(const char* name, const Loss& loss) {
  for (const auto& placed : kPlaced) {
    for (const int64_t reduction : {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
      const Function function = [&](const Tensors& x) { return loss(x[0], x[1], reduction); };
      check_call("tp=4", {name,
                          function,
                          {{placed.shape, placed.placements}, {placed.shape, placed.placements}},
                          nullptr});
    }
  }
  // The target need not be placed as the input is.
  check_call("dp=2,tp=2", {name,
                           [&](const Tensors& x) { return loss(x[0], x[1], at::Reduction::Mean); },
                           {{{8, 6}, "S0,S1"}, {{8, 6}, "R,S0"}},
                           nullptr,
                           kAnything,
                           kAnything});
}

TEST(PeerOperators, GradientOfMseLoss) {
  check_loss("mse_loss", [](const at::Tensor& x, const at::Tensor& y, int64_t reduction) {
    return at::mse_loss(x, y, reduction);
  });
}

TEST(PeerOperators, GradientOfHuberLoss) {
  check_loss("huber_loss", [](const at::Tensor& x, const at::Tensor& y, int64_t reduction) {
    return at::huber_loss(x, y, reduction, 0.7);
  });
}

TEST(PeerOperators, GradientOfSmoothL1Loss) {
  check_loss("smooth_l1_loss", [](const at::Tensor& x, const at::Tensor& y, int64_t reduction) {
    return at::smooth_l1_loss(x, y, reduction, 0.5);
  });
}

TEST(PeerOperators, GradientOfTheInfinityNorm) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double order : {inf, -inf}) {
    for (const auto& placed : kPlaced) {
      check_call("tp=4", {"norm of all",
                          [&](const Tensors& x) { return x[0].norm(order); },
                          {{placed.shape, placed.placements}},
                          nullptr,
                          kAnything,
                          kAnything});
      for (const int64_t dim : {0, 1}) {
        check_call("tp=4",
                   {"norm of a dim",
                    [&](const Tensors& x) { return at::linalg_vector_norm(x[0], order, dim); },
                    {{placed.shape, placed.placements}},
                    nullptr,
                    kAnything,
                    kAnything});
      }
    }
  }
}

/// By batch, by channels in and out; by space where there are dims enough.
void check_convolution(const char* name, const Function& function, std::vector<int64_t> input,
                       std::vector<int64_t> weight, bool transposed) {
  const int64_t out = weight[transposed ? 1 : 0];
  struct Case {
    const char *input, *weight, *bias;
  };
  const char* by_out = transposed ? "S1" : "S0";
  const char* by_in = transposed ? "S0" : "S1";
  for (const auto& c : {Case{"S0", "R", "R"}, Case{"R", by_out, "S0"}, Case{"S1", by_in, "R"},
                        Case{"S2", "R", "R"}, Case{"S0", "S0", "S0"}}) {
    check_call("tp=2", {name,
                        function,
                        {{input, c.input}, {weight, c.weight}, {{out}, c.bias}},
                        nullptr,
                        kAnything,
                        kAnything});
  }
  input[0] = 3;  // uneven
  check_call("tp=2", {name, function, {{input, "S0"}, {weight, "R"}, {{out}, "R"}}, nullptr});
}

TEST(PeerOperators, ValuesOfConv1d) {
  check_convolution(
      "conv1d", [](const Tensors& x) { return at::conv1d(x[0], x[1], x[2], 1, 1); }, {4, 4, 8},
      {6, 4, 3}, false);
}

TEST(PeerOperators, ValuesOfConv3d) {
  check_convolution(
      "conv3d", [](const Tensors& x) { return at::conv3d(x[0], x[1], x[2], 1, 1); },
      {4, 4, 6, 4, 4}, {6, 4, 3, 3, 3}, false);
}

TEST(PeerOperators, ValuesOfConvTranspose1d) {
  check_convolution(
      "conv_transpose1d",
      [](const Tensors& x) { return at::conv_transpose1d(x[0], x[1], x[2], 2); }, {4, 4, 8},
      {4, 6, 3}, true);
}

TEST(PeerOperators, ValuesOfConvTranspose2d) {
  check_convolution(
      "conv_transpose2d",
      [](const Tensors& x) { return at::conv_transpose2d(x[0], x[1], x[2], 2, 1); }, {4, 4, 6, 5},
      {4, 6, 3, 3}, true);
}

TEST(PeerOperators, ValuesOfConvTranspose3d) {
  check_convolution(
      "conv_transpose3d",
      [](const Tensors& x) { return at::conv_transpose3d(x[0], x[1], x[2], 2, 1); },
      {4, 4, 4, 3, 3}, {4, 6, 3, 3, 3}, true);
}

}  // namespace peer_operators_test
}  // namespace tessera::test
