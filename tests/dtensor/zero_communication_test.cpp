#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/watched_call.h"

/// What must run on the shards alone, forward and backward.
namespace tessera::test {
namespace zero_communication_test {

TEST(ZeroCommunication, OfPointwiseOps) {
  check_calls("tp=4", {
                          {"add",
                           [](const Tensors& x) { return x[0] + x[1]; },
                           {{{8, 6}, "S0"}, {{8, 6}, "S0"}},
                           "S0"},
                          {"add of uneven shards",
                           [](const Tensors& x) { return x[0] + x[1]; },
                           {{{7, 6}, "S0"}, {{7, 6}, "S0"}},
                           "S0"},
                          {"add of empty shards",
                           [](const Tensors& x) { return x[0] + x[1]; },
                           {{{2, 6}, "S0"}, {{2, 6}, "S0"}},
                           "S0"},
                          {"a broadcast row",
                           [](const Tensors& x) { return x[0] * x[1]; },
                           {{{8, 6}, "S0"}, {{6}, "R"}},
                           "S0"},
                          {"a number",
                           [](const Tensors& x) { return (x[0] * 2 + 1).relu(); },
                           {{{8, 6}, "S1"}},
                           "S1"},
                          {"gelu and a residual",
                           [](const Tensors& x) { return x[0] + at::gelu(x[1]); },
                           {{{8, 6}, "S1"}, {{8, 6}, "S1"}},
                           "S1"},
                          {"where",
                           [](const Tensors& x) { return at::where(x[0] > 0, x[0], x[1]); },
                           {{{8, 6}, "S0"}, {{8, 6}, "S0"}},
                           "S0"},
                          {"addcmul",
                           [](const Tensors& x) { return at::addcmul(x[0], x[1], x[2], 0.5); },
                           {{{8, 6}, "S0"}, {{8, 6}, "S0"}, {{8, 6}, "S0"}},
                           "S0"},
                          {"a product with a partial sum",
                           [](const Tensors& x) { return at::mm(x[0], x[1]) * x[2]; },
                           {{{3, 8}, "S1"}, {{8, 5}, "S0"}, {{3, 5}, "R"}},
                           "P(sum)"},
                      });
}

TEST(ZeroCommunication, OfMatrixRows) {
  check_calls("tp=4", {
                          {"mm by rows",
                           [](const Tensors& x) { return at::mm(x[0], x[1]); },
                           {{{8, 6}, "S0"}, {{6, 5}, "R"}},
                           "S0"},
                          {"mm by columns",
                           [](const Tensors& x) { return at::mm(x[0], x[1]); },
                           {{{8, 6}, "R"}, {{6, 8}, "S1"}},
                           "S1"},
                          {"mm by the summed dim",
                           [](const Tensors& x) { return at::mm(x[0], x[1]); },
                           {{{8, 8}, "S1"}, {{8, 5}, "S0"}},
                           "P(sum)"},
                          {"mm of uneven rows",
                           [](const Tensors& x) { return at::mm(x[0], x[1]); },
                           {{{7, 6}, "S0"}, {{6, 5}, "R"}},
                           "S0"},
                          {"addmm by rows",
                           [](const Tensors& x) { return at::addmm(x[0], x[1], x[2]); },
                           {{{5}, "R"}, {{8, 6}, "S0"}, {{6, 5}, "R"}},
                           "S0"},
                          {"addmm by columns",
                           [](const Tensors& x) { return at::addmm(x[0], x[1], x[2]); },
                           {{{8}, "S0"}, {{5, 6}, "R"}, {{6, 8}, "S1"}},
                           "S1"},
                          {"mv",
                           [](const Tensors& x) { return at::mv(x[0], x[1]); },
                           {{{8, 6}, "S0"}, {{6}, "R"}},
                           "S0"},
                          {"dot",
                           [](const Tensors& x) { return at::dot(x[0], x[1]); },
                           {{{8}, "S0"}, {{8}, "S0"}},
                           "P(sum)"},
                          {"outer",
                           [](const Tensors& x) { return at::outer(x[0], x[1]); },
                           {{{8}, "S0"}, {{6}, "R"}},
                           "S0"},
                      });
}

TEST(ZeroCommunication, OfLinearOnASequenceShard) {
  const Function linear = [](const Tensors& x) { return at::linear(x[0], x[1], x[2]); };
  check_calls("tp=4",
              {
                  {"sequence", linear, {{{2, 8, 6}, "S1"}, {{5, 6}, "R"}, {{5}, "R"}}, "S1"},
                  {"uneven sequence", linear, {{{2, 7, 6}, "S1"}, {{5, 6}, "R"}, {{5}, "R"}}, "S1"},
                  {"batch", linear, {{{8, 3, 6}, "S0"}, {{5, 6}, "R"}, {{5}, "R"}}, "S0"},
                  {"columns", linear, {{{2, 3, 6}, "R"}, {{8, 6}, "S0"}, {{8}, "S0"}}, "S2"},
                  {"rows without a bias",
                   [](const Tensors& x) { return at::linear(x[0], x[1]); },
                   {{{2, 3, 8}, "S2"}, {{5, 8}, "S1"}},
                   "P(sum)"},
              });
  check_calls("dp=2,tp=2", {
                               {"batch and sequence",
                                linear,
                                {{{4, 6, 6}, "S0,S1"}, {{5, 6}, "R,R"}, {{5}, "R,R"}},
                                "S0,S1"},
                               {"batch and columns",
                                linear,
                                {{{4, 3, 6}, "S0,R"}, {{8, 6}, "R,S0"}, {{8}, "R,S0"}},
                                "S0,S2"},
                           });
}

TEST(ZeroCommunication, OfViewsThatKeepTheShardedDimWhole) {
  check_calls(
      "tp=2",
      {
          {"split of another dim",
           [](const Tensors& x) {
             return x[0].view({4, 2, 3});
           },
           {{{4, 6}, "S0"}},
           "S0"},
          {"merge of other dims",
           [](const Tensors& x) { return x[0].flatten(1); },
           {{{4, 2, 3}, "S0"}},
           "S0"},
          {"merge with the outer dim",
           [](const Tensors& x) {
             return x[0].reshape({12, 3});
           },
           {{{4, 3, 3}, "S0"}},
           "S0"},
          {"heads out of a sharded width",
           [](const Tensors& x) {
             return x[0].view({2, 3, 4, 5});
           },
           {{{2, 3, 20}, "S2"}},
           "S2"},
          {"heads back into the width",
           [](const Tensors& x) { return x[0].flatten(2); },
           {{{2, 3, 4, 5}, "S2"}},
           "S2"},
          {"transpose",
           [](const Tensors& x) { return x[0].transpose(0, 1).contiguous(); },
           {{{4, 6}, "S0"}},
           "S1"},
          {"permute",
           [](const Tensors& x) {
             return x[0].permute({2, 0, 1});
           },
           {{{4, 2, 6}, "S0"}},
           "S1"},
          {"unsqueeze and squeeze",
           [](const Tensors& x) { return x[0].unsqueeze(0).squeeze(0); },
           {{{4, 6}, "S0"}},
           "S0"},
          {"expand",
           [](const Tensors& x) {
             return x[0].unsqueeze(0).expand({3, 4, 6});
           },
           {{{4, 6}, "S0"}},
           "S1"},
          {"select of another dim",
           [](const Tensors& x) { return x[0].select(1, 2); },
           {{{4, 6}, "S0"}},
           "S0"},
          {"slice of another dim",
           [](const Tensors& x) { return x[0].slice(1, 1, 5, 2); },
           {{{4, 6}, "S0"}},
           "S0"},
          {"slice of the dim itself",
           [](const Tensors& x) { return x[0].slice(0, 1, 3); },
           {{{4, 6}, "S0"}},
           nullptr},
          {"chunk of another dim",
           [](const Tensors& x) { return x[0].chunk(3, 1)[1]; },
           {{{4, 6}, "S0"}},
           "S0"},
          {"cat along another dim",
           [](const Tensors& x) {
             return at::cat({x[0], x[1]}, 1);
           },
           {{{4, 6}, "S0"}, {{4, 2}, "S0"}},
           "S0"},
          {"stack",
           [](const Tensors& x) {
             return at::stack({x[0], x[1]});
           },
           {{{4, 6}, "S0"}, {{4, 6}, "S0"}},
           "S1"},
          {"repeat of another dim",
           [](const Tensors& x) {
             return x[0].repeat({1, 2});
           },
           {{{4, 6}, "S0"}},
           "S0"},
          {"narrow", [](const Tensors& x) { return x[0].narrow(1, 2, 3); }, {{{4, 6}, "S0"}}, "S0"},
          {"unbind of another dim",
           [](const Tensors& x) { return x[0].unbind(1)[0]; },
           {{{4, 6}, "S0"}},
           "S0"},
          {"movedim",
           [](const Tensors& x) { return x[0].movedim(0, 2); },
           {{{4, 2, 6}, "S0"}},
           "S2"},
          {"unflatten",
           [](const Tensors& x) {
             return x[0].unflatten(1, {2, 3});
           },
           {{{4, 6}, "S0"}},
           "S0"},
      });
}

TEST(ZeroCommunication, OfNormsAndReductionsOnOtherDims) {
  check_calls("tp=2", {
                          {"layer_norm on a sharded batch",
                           [](const Tensors& x) { return at::layer_norm(x[0], {6}, x[1], x[2]); },
                           {{{4, 3, 6}, "S0"}, {{6}, "R"}, {{6}, "R"}},
                           "S0"},
                          {"layer_norm on a sharded sequence",
                           [](const Tensors& x) { return at::layer_norm(x[0], {6}, x[1], x[2]); },
                           {{{3, 5, 6}, "S1"}, {{6}, "R"}, {{6}, "R"}},
                           "S1"},
                          {"rms_norm",
                           [](const Tensors& x) { return at::rms_norm(x[0], {6}, x[1], 1e-5); },
                           {{{4, 3, 6}, "S0"}, {{6}, "R"}},
                           "S0"},
                          {"group_norm",
                           [](const Tensors& x) { return at::group_norm(x[0], 2, x[1], x[2]); },
                           {{{4, 6, 3}, "S0"}, {{6}, "R"}, {{6}, "R"}},
                           "S0"},
                          {"softmax",
                           [](const Tensors& x) { return at::softmax(x[0], -1); },
                           {{{4, 6}, "S0"}},
                           "S0"},
                          {"log_softmax",
                           [](const Tensors& x) { return at::log_softmax(x[0], 1); },
                           {{{4, 6}, "S0"}},
                           "S0"},
                          {"sum of another dim",
                           [](const Tensors& x) { return x[0].sum(1); },
                           {{{4, 6}, "S0"}},
                           "S0"},
                          {"sum of the dim itself",
                           [](const Tensors& x) { return x[0].sum(0); },
                           {{{4, 6}, "S0"}},
                           "P(sum)"},
                          {"mean of an uneven dim",
                           [](const Tensors& x) { return x[0].mean(0); },
                           {{{5, 6}, "S0"}},
                           "P(avg)"},
                          {"var of another dim",
                           [](const Tensors& x) { return x[0].var(1); },
                           {{{4, 6}, "S0"}},
                           "S0"},
                          {"max of another dim",
                           [](const Tensors& x) { return std::get<0>(x[0].max(1)); },
                           {{{4, 6}, "S0"}},
                           "S0"},
                          {"cumsum of another dim",
                           [](const Tensors& x) { return x[0].cumsum(1); },
                           {{{4, 6}, "S0"}},
                           "S0"},
                          {"sort of another dim",
                           [](const Tensors& x) { return std::get<0>(x[0].sort(1)); },
                           {{{4, 6}, "S0"}},
                           "S0"},
                          {"topk of another dim",
                           [](const Tensors& x) { return std::get<0>(x[0].topk(2, 1)); },
                           {{{4, 6}, "S0"}},
                           "S0"},
                      });
}

TEST(ZeroCommunication, OfAttentionOnShardedHeadsAndBatches) {
  const auto attention = [](bool causal) -> Function {
    return [causal](const Tensors& x) {
      return at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0, causal);
    };
  };
  const Function masked = [](const Tensors& x) {
    return at::scaled_dot_product_attention(x[0], x[1], x[2], x[3].detach());
  };
  const Function grouped = [](const Tensors& x) {
    return at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0.0, true, {}, true);
  };
  const std::vector<int64_t> shape = {2, 4, 6, 8};
  check_calls(
      "tp=2",
      {
          {"heads", attention(false), {{shape, "S1"}, {shape, "S1"}, {shape, "S1"}}, "S1"},
          {"heads, causal", attention(true), {{shape, "S1"}, {shape, "S1"}, {shape, "S1"}}, "S1"},
          {"batch, causal", attention(true), {{shape, "S0"}, {shape, "S0"}, {shape, "S0"}}, "S0"},
          {"heads, a mask for all",
           masked,
           {{shape, "S1"}, {shape, "S1"}, {shape, "S1"}, {{6, 6}, "R"}},
           "S1",
           "nothing",
           nullptr},
          {"grouped queries",
           grouped,
           {{shape, "S1"}, {{2, 2, 6, 8}, "S1"}, {{2, 2, 6, 8}, "S1"}},
           "S1"},
      });
  check_calls("dp=2,tp=2", {
                               {"batch and heads",
                                attention(true),
                                {{shape, "S0,S1"}, {shape, "S0,S1"}, {shape, "S0,S1"}},
                                "S0,S1"},
                           });
}

TEST(ZeroCommunication, OfConvolutionAndPoolingOnBatches) {
  check_calls("tp=2", {
                          {"conv2d",
                           [](const Tensors& x) { return at::conv2d(x[0], x[1], x[2], 1, 1); },
                           {{{4, 3, 5, 5}, "S0"}, {{6, 3, 3, 3}, "R"}, {{6}, "R"}},
                           "S0"},
                          {"conv2d by output channels",
                           [](const Tensors& x) { return at::conv2d(x[0], x[1], x[2], 1, 1); },
                           {{{2, 3, 5, 5}, "R"}, {{6, 3, 3, 3}, "S0"}, {{6}, "S0"}},
                           "S1"},
                          {"max_pool2d",
                           [](const Tensors& x) { return at::max_pool2d(x[0], 2); },
                           {{{4, 3, 6, 6}, "S0"}},
                           "S0"},
                          {"avg_pool2d",
                           [](const Tensors& x) { return at::avg_pool2d(x[0], 2); },
                           {{{4, 3, 6, 6}, "S1"}},
                           "S1"},
                          {"adaptive_avg_pool2d",
                           [](const Tensors& x) {
                             return at::adaptive_avg_pool2d(x[0], {2, 3});
                           },
                           {{{4, 3, 6, 6}, "S0"}},
                           "S0"},
                          {"interpolate",
                           [](const Tensors& x) {
                             return at::upsample_nearest2d(x[0], {12, 12});
                           },
                           {{{4, 3, 6, 6}, "S0"}},
                           "S0"},
                      });
}

TEST(ZeroCommunication, OfLookUpsAndLosses) {
  check_calls("tp=2", {
                          {"embedding of sharded words",
                           [](const Tensors& x) { return at::embedding(x[0], x[1]); },
                           {{{9, 4}, "R"}, {{4, 3}, "S0", 9}},
                           "S0"},
                          {"embedding of sharded columns",
                           [](const Tensors& x) { return at::embedding(x[0], x[1]); },
                           {{{9, 4}, "S1"}, {{4, 3}, "R", 9}},
                           "S2"},
                          {"gather",
                           [](const Tensors& x) { return x[0].gather(1, x[1]); },
                           {{{4, 6}, "S0"}, {{4, 2}, "S0", 6}},
                           "S0"},
                          {"index_select of another dim",
                           [](const Tensors& x) { return x[0].index_select(1, x[1]); },
                           {{{4, 6}, "S0"}, {{3}, "R", 6}},
                           "S0"},
                          {"mse_loss",
                           [](const Tensors& x) { return at::mse_loss(x[0], x[1]); },
                           {{{5, 6}, "S0"}, {{5, 6}, "S0"}},
                           "P(avg)"},
                          {"cross_entropy, summed",
                           [](const Tensors& x) {
                             return at::cross_entropy_loss(x[0], x[1], {}, at::Reduction::Sum);
                           },
                           {{{5, 6}, "S0"}, {{5}, "S0", 6}},
                           "P(sum)"},
                          {"binary_cross_entropy_with_logits",
                           [](const Tensors& x) {
                             return at::binary_cross_entropy_with_logits(x[0],
                                                                         x[1].detach().sigmoid());
                           },
                           {{{5, 6}, "S0"}, {{5, 6}, "S0"}},
                           "P(avg)",
                           "nothing",
                           nullptr},
                      });
}

}  // namespace zero_communication_test
}  // namespace tessera::test
