#pragma once

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/training.h"

/// The table of modules under test: how each is made and called, and the layouts people use.
namespace tessera::test {

struct Input {
  std::vector<int64_t> shape;
  int64_t below = 0;  ///< if > 0: whole numbers in [0, below), without a gradient
};

/// Placements by hand: "weight" -> "S0". What is not named, or "", is replicated.
struct Layout {
  const char* mesh;
  std::vector<const char*> inputs;
  std::map<std::string, const char*> parameters;
};

inline std::string layout_text(const Layout& layout) {
  std::string out = layout.mesh;
  for (const char* input : layout.inputs) out += std::string("; input ") + input;
  for (const auto& [name, placements] : layout.parameters) out += "; " + name + " " + placements;
  return out;
}

struct ModuleCase {
  std::string name;
  std::function<Instance()> make;
  std::vector<Input> inputs;
  std::vector<Layout> layouts;
  bool makes_tensors = false;  ///< its forward makes plain tensors: a state, a mask
  /// It draws random numbers: sharded tensors draw the same on any mesh, but not what plain ones
  /// do.
  bool draws = false;
};

inline Instance make_dropout() {
  torch::nn::Linear linear(6, 8);
  torch::nn::Dropout dropout(0.3);
  return {linear.ptr(), [linear, dropout](const std::vector<at::Tensor>& in) mutable {
            return dropout->forward(linear->forward(in[0])) + dropout->forward(in[1]);
          }};
}

/// A module whose forward takes one tensor.
template <typename Holder, typename... Args>
std::function<Instance()> simple(Args... args) {
  return [args...] {
    Holder module(args...);
    return Instance{module.ptr(), [module](const std::vector<at::Tensor>& in) mutable {
                      return module->forward(in[0]);
                    }};
  };
}

inline Instance make_attention() {
  torch::nn::MultiheadAttention module(torch::nn::MultiheadAttentionOptions(8, 4));
  return {module.ptr(), [module](const std::vector<at::Tensor>& in) mutable {
            return std::get<0>(module->forward(in[0], in[1], in[1]));
          }};
}

inline Instance make_masked_attention() {
  torch::nn::MultiheadAttention module(
      torch::nn::MultiheadAttentionOptions(8, 2).add_bias_kv(true).kdim(6).vdim(6));
  return {module.ptr(), [module](const std::vector<at::Tensor>& in) mutable {
            const auto [out, weights] =
                module->forward(in[0], in[1], in[2], /*key_padding_mask=*/in[4] > 2,
                                /*need_weights=*/true, /*attn_mask=*/in[3]);
            return out.sum(2) * weights.sum();
          }};
}

/// A linear layer and a loss over classes.
inline Instance make_classifier() {
  torch::nn::Linear module(6, 7);
  return {module.ptr(), [module](const std::vector<at::Tensor>& in) mutable {
            const at::Tensor scores = module->forward(in[0]);
            return at::cross_entropy_loss(scores, in[1]) +
                   at::cross_entropy_loss(scores, in[1], {}, at::Reduction::Sum, 2, 0.1);
          }};
}

inline Instance make_gru() {
  torch::nn::GRU module(torch::nn::GRUOptions(5, 6).num_layers(2));
  return {module.ptr(), [module](const std::vector<at::Tensor>& in) mutable {
            return std::get<0>(module->forward(in[0], in[1]));
          }};
}

inline Instance make_gru_from_zero() {
  torch::nn::GRU module(torch::nn::GRUOptions(5, 6));
  return {module.ptr(), [module](const std::vector<at::Tensor>& in) mutable {
            return std::get<0>(module->forward(in[0]));
          }};
}

inline Instance make_encoder(double dropout) {
  const auto layer =
      torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(dropout);
  torch::nn::TransformerEncoder module(torch::nn::TransformerEncoderLayer(layer), 2);
  return {module.ptr(),
          [module](const std::vector<at::Tensor>& in) mutable { return module->forward(in[0]); }};
}

inline Instance make_lstm() {
  torch::nn::LSTM module(torch::nn::LSTMOptions(5, 6).num_layers(2).bidirectional(true));
  return {module.ptr(), [module](const std::vector<at::Tensor>& in) mutable {
            return std::get<0>(module->forward(in[0]));
          }};
}

inline Instance make_lstm_with_state() {
  torch::nn::LSTM module(torch::nn::LSTMOptions(5, 6).batch_first(true));
  return {module.ptr(), [module](const std::vector<at::Tensor>& in) mutable {
            const auto [out, state] = module->forward(in[0], std::make_tuple(in[1], in[2]));
            return out + std::get<0>(state).sum() + std::get<1>(state).sum();
          }};
}

inline const std::vector<ModuleCase>& module_cases() {
  using namespace torch::nn;  // NOLINT: a table of names
  static const std::vector<ModuleCase> cases = {
      {"Linear",
       simple<Linear>(LinearOptions(6, 8)),
       {{{4, 5, 6}}},
       {{"tp=2", {""}, {{"weight", "S0"}, {"bias", "S0"}}},
        {"tp=2", {"S2"}, {{"weight", "S1"}}},
        {"tp=2", {"S1"}, {}},
        {"dp=2,tp=2", {"S0,R"}, {{"weight", "R,S0"}, {"bias", "R,S0"}}},
        {"dp=2,sp=2,tp=2", {"S0,S1,R"}, {{"weight", "R,R,S0"}, {"bias", "R,R,S0"}}}}},
      {"Embedding",
       simple<Embedding>(EmbeddingOptions(7, 6)),
       {{{4, 3}, 7}},
       {{"tp=2", {""}, {{"weight", "S1"}}},
        {"tp=2", {""}, {{"weight", "S0"}}},
        {"dp=2,tp=2", {"S0,R"}, {{"weight", "R,S0"}}}}},
      {"LayerNorm",
       simple<LayerNorm>(LayerNormOptions({6})),
       {{{4, 5, 6}}},
       {{"tp=2", {"S1"}, {}}, {"dp=2,sp=2", {"S0,S1"}, {}}, {"tp=2", {"S2"}, {}}}},
      {"GroupNorm",
       simple<GroupNorm>(GroupNormOptions(2, 6)),
       {{{4, 6, 3}}},
       {{"dp=2", {"S0"}, {}},
        {"tp=2", {"S1"}, {{"weight", "S0"}, {"bias", "S0"}}},
        {"tp=3", {"S1"}, {{"weight", "S0"}, {"bias", "S0"}}}}},
      {"Conv1d",
       simple<Conv1d>(Conv1dOptions(4, 6, 3).padding(1)),
       {{{4, 4, 8}}},
       {{"dp=2", {"S0"}, {}},
        {"tp=2", {""}, {{"weight", "S0"}, {"bias", "S0"}}},
        {"tp=2", {"S1"}, {{"weight", "S1"}}}}},
      {"Conv2d",
       simple<Conv2d>(Conv2dOptions(4, 6, 3).stride(2).groups(2)),
       {{{4, 4, 7, 7}}},
       {{"dp=2", {"S0"}, {}},
        {"tp=2", {"S1"}, {{"weight", "S0"}, {"bias", "S0"}}},
        {"dp=2,tp=2", {"S0,R"}, {{"weight", "R,S0"}, {"bias", "R,S0"}}}}},
      {"Conv3d",
       simple<Conv3d>(Conv3dOptions(2, 4, 2).padding(1)),
       {{{3, 2, 4, 3, 5}}},
       {{"dp=2", {"S0"}, {}}, {"tp=2", {""}, {{"weight", "S0"}, {"bias", "S0"}}}}},
      {"MultiheadAttention",
       make_attention,
       {{{4, 2, 8}}, {{3, 2, 8}}},
       {{"dp=2", {"S1", "S1"}, {}},
        {"sp=2", {"S0", ""}, {}},
        {"tp=2",
         {"", ""},
         {{"in_proj_weight", "S0"}, {"in_proj_bias", "S0"}, {"out_proj.weight", "S1"}}},
        {"dp=2,tp=2",
         {"S1,R", "S1,R"},
         {{"in_proj_weight", "R,S0"}, {"in_proj_bias", "R,S0"}, {"out_proj.weight", "R,S1"}}}}},
      {"TransformerEncoder",
       [] { return make_encoder(0); },
       {{{4, 2, 8}}},
       {{"dp=2", {"S1"}, {}},
        {"sp=2", {"S0"}, {}},
        {"dp=2,tp=2",
         {"S1,R"},
         {{"layers.0.linear1.weight", "R,S0"},
          {"layers.0.linear1.bias", "R,S0"},
          {"layers.0.linear2.weight", "R,S1"},
          {"layers.1.linear1.weight", "R,S0"},
          {"layers.1.linear1.bias", "R,S0"},
          {"layers.1.linear2.weight", "R,S1"}}}}},
      {"LSTM",
       make_lstm,
       {{{4, 3, 5}}},
       {{"dp=2", {"S1"}, {}}, {"tp=2", {""}, {{"weight_ih_l0", "S0"}, {"weight_hh_l0", "S0"}}}}},
      {"GRUFromZero", make_gru_from_zero, {{{4, 3, 5}}}, {{"dp=2", {"S1"}, {}}}},
      {"LSTMWithState",
       make_lstm_with_state,
       {{{4, 3, 5}}, {{1, 4, 6}}, {{1, 4, 6}}},
       {{"dp=2", {"S0", "S1", "S1"}, {}}}},
      {"MaskedAttention",
       make_masked_attention,
       {{{4, 2, 8}}, {{3, 2, 6}}, {{3, 2, 6}}, {{4, 3}}, {{2, 3}, 4}},
       {{"dp=2", {"S1", "S1", "S1", "", "S0"}, {}}, {"sp=2", {"S0", "", "", "S0", ""}, {}}},
       true},
      {"EmbeddingWithPadding",
       simple<Embedding>(EmbeddingOptions(7, 6).padding_idx(2)),
       {{{4, 3}, 7}},
       {{"tp=2", {""}, {{"weight", "S0"}}}, {"dp=2", {"S0"}, {}}}},
      {"ConvTranspose2d",
       simple<ConvTranspose2d>(ConvTranspose2dOptions(4, 6, 3).stride(2).output_padding(1)),
       {{{2, 4, 4, 5}}},
       {{"dp=2", {"S0"}, {}}, {"tp=2", {""}, {{"weight", "S1"}, {"bias", "S0"}}}}},
      {"BatchNorm2d",
       simple<BatchNorm2d>(BatchNorm2dOptions(6)),
       {{{4, 6, 3, 2}}},
       {{"dp=2", {"S0"}, {}}, {"tp=2", {"S1"}, {{"weight", "S0"}, {"bias", "S0"}}}}},
      {"BatchNorm1d",
       simple<BatchNorm1d>(BatchNorm1dOptions(6).momentum(std::nullopt)),
       {{{5, 6}}},
       {{"dp=2", {"S0"}, {}}, {"tp=2", {"S1"}, {}}}},
      {"InstanceNorm2d",
       simple<InstanceNorm2d>(InstanceNorm2dOptions(6).affine(true).track_running_stats(true)),
       {{{4, 6, 3, 2}}},
       {{"dp=2", {"S0"}, {}}, {"tp=2", {"S1"}, {}}}},
      {"Classifier",
       make_classifier,
       {{{5, 6}}, {{5}, 7}},
       {{"dp=2", {"S0", "S0"}, {}}, {"tp=2", {"", ""}, {{"weight", "S0"}, {"bias", "S0"}}}}},
      {"GRU", make_gru, {{{4, 3, 5}}, {{2, 3, 6}}}, {{"dp=2", {"S1", "S1"}, {}}}},
      {"Dropout",
       make_dropout,
       {{{4, 5, 6}}, {{4, 5, 8}}},
       {{"tp=2", {"", "S2"}, {{"weight", "S0"}, {"bias", "S0"}}},
        {"dp=2,sp=2", {"S0,S1", "S0,S1"}, {}}},
       false,
       true},
      {"TransformerEncoderWithDropout",
       [] { return make_encoder(0.2); },
       {{{4, 2, 8}}},
       {{"dp=2", {"S1"}, {}}, {"dp=2,sp=2", {"S1,S0"}, {}}},
       false,
       true},
  };
  return cases;
}

}  // namespace tessera::test
