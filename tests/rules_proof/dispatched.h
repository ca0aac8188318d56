#pragma once

#include <torch/csrc/autograd/autograd.h>

#include <mutex>

#include "tessera/comm/rank_generator.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/rules_proof/prove_all.h"

/// The rows of a rule through the dispatcher: operands distributed over thread ranks as a row says,
/// the op called on them, results and gradients compared with the plain ones.
namespace tessera::test {

struct Expectation {
  std::vector<at::Tensor> results;
  std::vector<at::Tensor> cotangents;  ///< by result; undefined: not differentiable
  std::vector<at::Tensor> gradients;   ///< by operand; undefined: none, which is zero
  bool differentiable = false;
};

inline bool can_have_gradient(const at::Tensor& t) {
  return t.defined() && (at::isFloatingType(t.scalar_type()) || at::isComplexType(t.scalar_type()));
}

/// Calls the op with gradients on; `ask` says which operands want one.
struct Called {
  std::vector<at::Tensor> results, operands;
};
inline Called call_recorded(const Sample& sample, std::vector<at::Tensor> operands,
                            const std::vector<bool>& ask) {
  for (size_t o = 0; o < operands.size(); ++o) {
    if (ask[o]) operands[o].requires_grad_();
  }
  auto stack = with_tensors(sample, operands);
  sample.op.callBoxed(stack);
  auto results = tensors_in(stack, true);
  if (results.empty()) results = operands;  // it wrote to them
  return {std::move(results), std::move(operands)};
}

inline std::vector<at::Tensor> gradients_of(const Called& called, const std::vector<bool>& ask,
                                            const std::vector<at::Tensor>& cotangents) {
  std::vector<at::Tensor> outputs, inputs, given;
  for (size_t r = 0; r < called.results.size(); ++r) {
    if (!called.results[r].defined() || !called.results[r].requires_grad()) continue;
    if (!cotangents[r].defined()) continue;
    outputs.push_back(called.results[r]);
    given.push_back(cotangents[r]);
  }
  for (size_t o = 0; o < ask.size(); ++o) {
    if (ask[o]) inputs.push_back(called.operands[o]);
  }
  std::vector<at::Tensor> out(ask.size());
  if (outputs.empty() || inputs.empty()) return out;
  const auto made = torch::autograd::grad(outputs, inputs, given, false, false, true);
  for (size_t o = 0, next = 0; o < ask.size(); ++o) {
    if (ask[o]) out[o] = made[next++];
  }
  return out;
}

/// Ops that write to an operand are proven without gradients: a leaf cannot be written.
inline bool writes(const Sample& sample) {
  for (const auto& argument : sample.op.schema().arguments()) {
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) return true;
  }
  return sample.op.schema().returns().empty();
}

inline std::vector<bool> asked(const Sample& sample, const std::vector<at::Tensor>& operands) {
  std::vector<bool> out;
  for (const auto& t : operands) out.push_back(!writes(sample) && can_have_gradient(t));
  return out;
}

inline std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const auto& t : tensors) out.push_back(t.defined() ? t.detach().clone() : t);
  return out;
}

inline at::Tensor whole(const at::Tensor& t) {
  return is_dtensor(t) ? full_tensor(t.detach()) : t.detach().clone();
}

/// libtorch resizes an out= tensor of another shape than the result; a sharded one is refused.
inline void check_out_shapes(const Sample& sample, const std::vector<at::Tensor>& given,
                             const std::vector<at::Tensor>& after) {
  const auto& arguments = sample.op.schema().arguments();
  if (std::ranges::none_of(arguments, [](const auto& a) { return a.is_out(); })) return;
  for (size_t o = 0; o < given.size(); ++o) {
    if (given[o].defined() && given[o].sizes() != after[o].sizes())
      throw std::invalid_argument("an out= tensor of another shape than the result");
  }
}

/// What the op gives for these operands. Throws if it has no kernel here.
inline Expectation expectation(const Sample& sample, const std::vector<at::Tensor>& operands) {
  Expectation out;
  auto ask = asked(sample, operands);
  Called called;
  try {
    called = call_recorded(sample, copies_of(operands), ask);
  } catch (const c10::Error&) {  // not with gradients: without
    std::fill(ask.begin(), ask.end(), false);
    at::NoGradGuard no_grad;
    called = call_recorded(sample, copies_of(operands), ask);
  }
  check_out_shapes(sample, operands, called.operands);
  for (const auto& r : called.results) {
    out.results.push_back(r.defined() ? whole(r) : r);
    const bool wanted = r.defined() && r.requires_grad();
    out.cotangents.push_back(wanted ? at::randn_like(r.detach()) : at::Tensor());
    out.differentiable |= wanted;
  }
  try {
    out.gradients = gradients_of(called, ask, out.cotangents);
    for (auto& g : out.gradients) g = g.defined() ? whole(g) : g;
    for (auto& c : out.cotangents) c = c.defined() ? whole(c) : c;
  } catch (const c10::Error&) {  // the op has a derivative in name only
    out.differentiable = false;
    out.gradients.assign(ask.size(), {});
  }
  return out;
}

inline Expectation expectation(const Sample& sample) {
  return expectation(sample, operands_in(sample));
}

constexpr uint64_t kSeedOfDraws = 17;

/// Of ops that draw: what one rank draws is what any number of ranks must.
inline Expectation expectation_of_draws(const Sample& sample) {
  Expectation out;
  comm::run_ranks(1, [&](int) {
    comm::manual_seed(kSeedOfDraws);
    const DeviceMesh mesh = comm::init_device_mesh("x=1");
    std::vector<at::Tensor> operands;
    for (const auto& t : operands_in(sample))
      operands.push_back(t.defined() ? distribute_tensor(t, mesh, {Replicate()}) : t);
    out = expectation(sample, operands);
  });
  return out;
}

inline std::string difference(const at::Tensor& found, const at::Tensor& want) {
  const at::Tensor have = is_dtensor(found) ? full_tensor(found.detach()) : found.detach();
  if (alike(have, want)) return {};
  std::ostringstream out;
  if (have.sizes() != want.sizes() || have.scalar_type() != want.scalar_type()) {
    out << have.sizes() << " of " << have.scalar_type() << ", not " << want.sizes() << " of "
        << want.scalar_type();
  } else {
    out << "values differ by "
        << (have.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
  }
  return out.str();
}

/// Gradients come back in any placement: dims take turns from call to call.
inline std::vector<at::Tensor> placed_cotangents(const Expectation& expected,
                                                 const DeviceMesh& mesh, size_t turn) {
  std::vector<at::Tensor> out;
  for (const auto& c : expected.cotangents) {
    std::vector<Placement> placements;
    for (int axis = 0; c.defined() && axis < mesh.ndim(); ++axis) {
      const auto dim =
          static_cast<int>((turn + static_cast<size_t>(axis)) % (static_cast<size_t>(c.dim()) + 1));
      placements.push_back(dim < c.dim() ? Shard(dim) : Replicate());
    }
    out.push_back(c.defined() ? distribute_tensor(c, mesh, placements, {.source = std::nullopt})
                              : c);
  }
  return out;
}

/// Empty if the calling rank finds results and gradients right.
inline std::string found_on_rank(const Sample& sample, const Expectation& expected,
                                 const DeviceMesh& mesh, std::vector<at::Tensor> operands,
                                 std::vector<bool> ask, size_t turn) {
  if (!expected.differentiable) std::fill(ask.begin(), ask.end(), false);
  const at::AutoGradMode recording(expected.differentiable);
  comm::manual_seed(kSeedOfDraws);
  const Called called = call_recorded(sample, std::move(operands), ask);
  if (called.results.size() != expected.results.size())
    return std::to_string(called.results.size()) + " results";
  for (size_t r = 0; r < expected.results.size(); ++r) {
    if (!expected.results[r].defined() || !called.results[r].defined()) continue;
    const std::string error = difference(called.results[r], expected.results[r]);
    if (!error.empty()) return "result " + std::to_string(r) + ": " + error;
  }
  if (!expected.differentiable) return {};
  const auto gradients = gradients_of(called, ask, placed_cotangents(expected, mesh, turn));
  for (size_t o = 0; o < ask.size(); ++o) {
    if (!ask[o]) continue;
    const at::Tensor& want = expected.gradients[o];
    if (!want.defined() && !gradients[o].defined()) continue;
    const at::Tensor zero =
        at::zeros(called.operands[o].sizes(), at::TensorOptions(called.operands[o].scalar_type()));
    const std::string error =
        difference(gradients[o].defined() ? gradients[o] : zero, want.defined() ? want : zero);
    if (!error.empty()) return "gradient of operand " + std::to_string(o) + ": " + error;
  }
  return {};
}

using OperandPlacements = std::vector<std::vector<Placement>>;  ///< by operand, by axis

/// Calls the op under each of the placements, all in one world of thread ranks.
inline void prove_calls(const Sample& sample, const Expectation& expected, const DeviceMesh& shape,
                        const std::vector<OperandPlacements>& placements, Tally& tally) {
  const auto operands = operands_in(sample);
  const auto ask = asked(sample, operands);
  std::vector<std::vector<std::vector<at::Tensor>>> parts(placements.size());
  for (size_t c = 0; c < placements.size(); ++c) {
    for (size_t o = 0; o < operands.size(); ++o) {
      parts[c].push_back(operands[o].defined()
                             ? split(operands[o], sharding_of(operands[o], shape, placements[c][o]))
                             : std::vector<at::Tensor>(static_cast<size_t>(shape.size())));
    }
  }
  std::mutex mutex;
  std::set<std::string> failures;
  comm::run_ranks(shape.size(), [&](int rank) {
    const DeviceMesh mesh = comm::init_device_mesh(shape.to_text());
    for (size_t c = 0; c < placements.size(); ++c) {
      std::string error;
      try {
        std::vector<at::Tensor> mine;
        for (size_t o = 0; o < operands.size(); ++o) {
          const at::Tensor& part = parts[c][o][static_cast<size_t>(rank)];
          mine.push_back(part.defined() ? from_local(part.clone(), mesh, placements[c][o],
                                                     {.shape = operands[o].sizes().vec()})
                                              .detach()
                                        : part);
        }
        std::vector<bool> wanted = ask;
        for (size_t o = 0; o < wanted.size(); ++o) {
          for (const auto& p : placements[c][o])
            wanted[o] = wanted[o] && (!p.is_partial() || p.reduce_op() == ReduceOp::sum ||
                                      p.reduce_op() == ReduceOp::avg);
        }
        error = found_on_rank(sample, expected, mesh, std::move(mine), wanted, c);
      } catch (const std::exception& e) {
        error = std::string("throws ") + e.what();
      }
      if (error.empty()) continue;
      std::string text = sample.text + "  on " + shape.to_text() + "  from";
      for (const auto& p : placements[c]) text += " " + placements_text(p);
      const std::lock_guard lock(mutex);
      failures.insert(text + "\n    " + error.substr(0, 400));
    }
  });
  tally.choices += static_cast<int>(placements.size());
  for (const auto& failure : failures) tally.failures.push_back(failure);
}

}  // namespace tessera::test
