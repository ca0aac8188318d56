#include "tessera/parallel/context/ring_attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/held_value.h"
#include "tessera/exec/buffers.h"
#include "tessera/parallel/context/rotation.h"
#include "tessera/sharding/dim_intervals.h"

namespace tessera::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr std::string_view kRingSite = "context_parallel_attention";

/// Keys and values of one rank in one flat buffer, and tensors of the same shapes.
class Block {
 public:
  Block(at::Tensor flat, const at::Tensor& key_like, const at::Tensor& value_like, int64_t rows)
      : flat_(std::move(flat)) {
    auto sizes = key_like.sizes().vec();
    sizes[2] = rows;
    key = exec::alias(flat_, sizes);
    const int64_t keys = key.numel();
    sizes[3] = value_like.size(3);
    value = exec::alias(flat_, sizes, keys);
  }
  Block(at::Tensor k, at::Tensor v) : key(std::move(k)), value(std::move(v)) {}
  const at::Tensor& flat() const { return flat_; }
  at::Tensor key, value;

 private:
  at::Tensor flat_;
};

/// The blocks of all ranks as one rank meets them.
class Walk {
 public:
  Walk(const RingProblem& problem, const at::Tensor& key, const at::Tensor& value)
      : problem_(problem),
        ring_(problem.group, problem.axis, kRingSite),
        key_(key),
        value_(value) {}

  const Ring& ring() const { return ring_; }
  int steps() const { return ring_.size(); }
  /// The rank whose keys are at hand at a step.
  int owner(int step) const { return (ring_.index() - step % steps() + steps()) % steps(); }
  const RowSet& keys(int step) const { return problem_.keys[static_cast<size_t>(owner(step))]; }
  int64_t numel(int step) const {
    return key_.size(0) * key_.size(1) * total_size(keys(step).positions) *
           (key_.size(3) + value_.size(3));
  }
  Block own() const { return block(at::cat({key_.reshape({-1}), value_.reshape({-1})}), 0); }
  Block block(at::Tensor flat, int step) const {
    return {std::move(flat), key_, value_, total_size(keys(step).positions)};
  }
  Rotating start(const at::Tensor& flat, int step) const {
    return ring_.start(flat, numel(step + 1));
  }

 private:
  const RingProblem& problem_;
  Ring ring_;
  at::Tensor key_, value_;
};

struct RingAttention : torch::autograd::Function<RingAttention> {
  static Variable forward(AutogradContext* ctx, const Variable& query, const Variable& key,
                          const Variable& value, std::shared_ptr<const RingProblem> problem) {
    BlockAttention state(problem->block, query, value.size(3));
    const Walk walk(*problem, key, value);
    if (walk.steps() == 1) {
      state.add(problem->keys[0], key, value);
    } else {
      Block block = walk.own();
      for (int step = 0; step < walk.steps(); ++step) {
        Rotating next;
        if (step + 1 < walk.steps()) next = walk.start(block.flat(), step);
        state.add(walk.keys(step), block.key, block.value);
        if (next.defined()) block = walk.block(next.wait(), step + 1);
      }
    }
    const at::Tensor out = state.out();
    dtensor::hold_value(ctx, "problem", std::move(problem));
    ctx->save_for_backward({query, key, value, out, state.log_sum_exp()});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (c10::GradMode::is_enabled()) {
      throw NotSupported(
          "context_parallel_attention: the attention kernels have no second derivative; call "
          "backward without create_graph");
    }
    const auto& problem = *dtensor::held_value<std::shared_ptr<const RingProblem>>(ctx, "problem");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &query = saved[0], &key = saved[1], &value = saved[2];
    BlockGradients state(problem.block, query, grads[0], saved[3], saved[4]);
    const Walk walk(problem, key, value);
    const auto sums = key.options().dtype(accumulation_dtype(key.scalar_type()));
    Block block = walk.steps() == 1 ? Block(key, value) : walk.own();
    Rotating arriving;
    for (int step = 0; step < walk.steps(); ++step) {
      Rotating next;
      if (step + 1 < walk.steps()) next = walk.start(block.flat(), step);
      const Block sum = walk.block(at::zeros({walk.numel(step)}, sums), step);
      state.add(walk.keys(step), block.key, block.value, sum.key, sum.value);
      if (arriving.defined()) sum.flat().add_(arriving.wait());
      arriving = walk.start(sum.flat(), step);
      if (next.defined()) block = walk.block(next.wait(), step + 1);
    }
    const Block own = walk.block(arriving.wait(), 0);
    return {state.query(), own.key.to(key.scalar_type()), own.value.to(value.scalar_type()),
            Variable()};
  }
};

}  // namespace

at::Tensor ring_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          std::shared_ptr<const RingProblem> problem) {
  return RingAttention::apply(query, key, value, std::move(problem));
}

}  // namespace tessera::parallel
