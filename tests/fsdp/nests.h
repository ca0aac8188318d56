#pragma once

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include <list>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/fsdp/recompute.h"
#include "tests/support/training.h"

/// Random nets: layers of many kinds, nested, with parameters of odd shapes, tied, frozen and
/// ignored ones, parts that are recomputed. The same seed makes the same net.
namespace tessera::test {

/// What one pass through a net does besides computing. Layers are known by their number.
struct Pass {
  std::set<int> skipped = {};    ///< of those that keep the width
  int throws_at = -1;            ///< in forward, also when it is computed again
  int hook_throws_at = -1;       ///< in backward, when the gradient of its output has come
  int tap = -1;                  ///< whose output is wanted besides the last
  at::Tensor tapped = {};        ///< that; undefined if the layer was skipped
  std::list<Forward> kept = {};  ///< functions that backward calls
};

/// A layer or a nest of them: [rows, in] -> [rows, out].
struct PieceImpl : torch::nn::Module {
  PieceImpl(int64_t in_, int64_t out_) : in(in_), out(out_) {}
  virtual at::Tensor compute(const at::Tensor& x, Pass& pass) = 0;
  int64_t in, out;
};

enum class LayerKind { linear, norm, scale, nothing, cube, views };

struct LayerImpl : PieceImpl {
  LayerImpl(int number_, LayerKind kind_, int64_t in, int64_t out)
      : PieceImpl(in, out), number(number_), kind(kind_) {}

  at::Tensor compute(const at::Tensor& x, Pass& pass) override {
    if (in == out && pass.skipped.contains(number)) return x;
    const at::Tensor y = apply(x);
    if (pass.throws_at == number) throw std::runtime_error("a layer of the test");
    if (pass.hook_throws_at == number && y.requires_grad()) {
      y.register_hook(
          [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("a hook of the test"); });
    }
    if (pass.tap == number) pass.tapped = y;
    return y;
  }
  at::Tensor apply(const at::Tensor& x) const {
    switch (kind) {
      case LayerKind::linear:
        return at::tanh(at::linear(x, weight, bias));
      case LayerKind::norm:
        return at::layer_norm(x, {in}, weight, bias);
      case LayerKind::scale:
        return x * weight;
      case LayerKind::nothing:
        return x + weight.sum();
      case LayerKind::cube:
        return x + weight.mean(0).sum(1);
      case LayerKind::views:
        return at::tanh(at::matmul(x, weight.t()) + weight.view({-1}).narrow(0, 0, 1));
    }
    return x;
  }

  int number;
  LayerKind kind;
  at::Tensor weight, bias;
};

struct NestImpl : PieceImpl {
  using PieceImpl::PieceImpl;

  at::Tensor compute(const at::Tensor& x, Pass& pass) override {
    if (!recomputed) return inside(x, pass);
    pass.kept.push_back([this, &pass](const at::Tensor& again) { return inside(again, pass); });
    return Recompute::apply(x, &pass.kept.back());
  }
  at::Tensor inside(const at::Tensor& x, Pass& pass) {
    at::Tensor y = x;
    for (const auto& piece : pieces) y = piece->compute(y, pass);
    return residual && in == out ? x + y : y;
  }

  std::vector<std::shared_ptr<PieceImpl>> pieces;
  bool residual = false;
  bool recomputed = false;
  bool is_group = false;
};

/// A net with what the test must know of it.
struct Net {
  std::shared_ptr<NestImpl> root;
  std::vector<std::shared_ptr<NestImpl>> groups;  ///< inner ones before outer ones, root last
  std::vector<at::Tensor> ignored_params;
  std::vector<at::Tensor> parameters;  ///< tied ones once
  int layers = 0;
  bool has_tied = false;  ///< an op may then use two groups at a time

  at::Tensor forward(const at::Tensor& x, Pass& pass) const { return root->compute(x, pass); }
};

class NetMaker {
 public:
  explicit NetMaker(uint64_t seed) : rng_(seed) {}

  Net make() {
    net_.root = nest(width(), /*depth=*/0);
    net_.root->is_group = true;
    net_.groups.push_back(net_.root);
    net_.layers = layers_;
    net_.root->to(at::kDouble);
    fill();
    return net_;
  }

 private:
  int64_t width() { return rng_.chance(20) ? rng_.between(60, 70) : rng_.between(1, 9); }

  std::shared_ptr<NestImpl> nest(int64_t in, int depth) {
    std::vector<std::shared_ptr<PieceImpl>> pieces;
    int64_t now = in;
    const int64_t count = rng_.between(1, depth == 0 ? 4 : 3);
    for (int64_t i = 0; i < count; ++i) {
      std::shared_ptr<PieceImpl> piece;
      if (depth < 3 && rng_.chance(55)) {
        piece = nest(now, depth + 1);
      } else {
        piece = layer(now);
      }
      now = piece->out;
      pieces.push_back(std::move(piece));
    }
    auto made = std::make_shared<NestImpl>(in, now);
    for (size_t i = 0; i < pieces.size(); ++i) {
      made->register_module("p" + std::to_string(i), pieces[i]);
    }
    made->pieces = std::move(pieces);
    made->residual = rng_.chance(30);
    made->recomputed = depth > 0 && rng_.chance(20);
    made->is_group = depth > 0 && rng_.chance(70);
    if (made->is_group) net_.groups.push_back(made);
    return made;
  }

  std::shared_ptr<LayerImpl> layer(int64_t in) {
    const auto kind = rng_.one_of<LayerKind>(
        {LayerKind::linear, LayerKind::linear, LayerKind::linear, LayerKind::norm, LayerKind::scale,
         LayerKind::nothing, LayerKind::cube, LayerKind::views});
    const int64_t out = kind == LayerKind::linear && rng_.chance(60) ? width() : in;
    auto made = std::make_shared<LayerImpl>(layers_++, kind, in, out);
    const bool with_bias =
        kind == LayerKind::norm || (kind == LayerKind::linear && rng_.chance(70));
    made->weight = made->register_parameter("weight", weight(kind, in, out));
    if (with_bias) made->bias = made->register_parameter("bias", at::zeros({out}));
    made_.push_back(made);
    return made;
  }

  at::Tensor weight(LayerKind kind, int64_t in, int64_t out) {
    switch (kind) {
      case LayerKind::linear:
        for (const auto& other : made_) {  // tied, within a group or across groups
          const bool fits = other->kind == kind && other->in == in && other->out == out;
          if (!fits || !rng_.chance(30)) continue;
          net_.has_tied = true;
          return other->weight;
        }
        return at::zeros({out, in});
      case LayerKind::norm:
        return at::zeros({in});
      case LayerKind::scale:
        return at::zeros({});
      case LayerKind::nothing:
        return rng_.chance(50) ? at::zeros({0, 3}) : at::zeros({in, 0});
      case LayerKind::cube:
        return at::zeros({rng_.between(1, 5), in, rng_.between(1, 3)});
      case LayerKind::views:
        return at::zeros({in, in});
    }
    return {};
  }

  /// Values, and which are frozen or ignored. Module::to has given parameters new memory in place,
  /// so that tied ones still are.
  void fill() {
    const torch::NoGradGuard no_grad;
    std::set<const void*> seen;
    uint64_t seed = 100;
    for (const at::Tensor& parameter : net_.root->parameters()) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      net_.parameters.push_back(parameter);
      if (parameter.numel() > 0) {
        const int64_t fan = std::max<int64_t>(parameter.dim() > 1 ? parameter.size(-1) : 1, 1);
        parameter.copy_(test_numbers(parameter.sizes().vec(), ++seed) / std::sqrt(1.0 * fan));
      }
      parameter.set_requires_grad(!rng_.chance(10));
      if (rng_.chance(5)) net_.ignored_params.push_back(parameter);
    }
  }

  Rng rng_;
  Net net_;
  int layers_ = 0;
  std::vector<std::shared_ptr<LayerImpl>> made_;
};

}  // namespace tessera::test
