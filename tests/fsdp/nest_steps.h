#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/fsdp/nests.h"
#include "tests/fsdp/training.h"

/// Steps of training of all kinds, for the nets of nests.h: one or several batches, forwards and
/// backwards in any order, parts of graphs, losses of parameters, second derivatives.
namespace tessera::test {

/// A net with its optimizer, plain or sharded, and the rows it computes with.
struct Side {
  Net net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  int64_t part = 0;
  int64_t of = 1;
  bool sharded = false;

  Batch batch(uint64_t seed, int64_t rows) const {
    const Batch all = {test_numbers({rows, net.root->in}, seed),
                       test_numbers({rows, net.root->out}, seed + 1)};
    Batch mine = all.part(part, of);
    mine.x.requires_grad_();  // so that autograd enters what is recomputed
    return mine;
  }
};

/// What a step does; drawn once, done by both sides.
struct StepPlan {
  enum class Graph { plain, two_forwards, two_graphs, part, regularised, penalty };

  StepPlan(Rng& rng, const Net& net, int64_t rows_) : rows(rows_), seed(rng.next() % 100000) {
    graph = rng.one_of<Graph>({Graph::plain, Graph::plain, Graph::two_forwards, Graph::two_graphs,
                               Graph::part, Graph::regularised, Graph::penalty});
    micros = rng.chance(30) ? rng.int_between(2, 3) : 1;
    for (int i = 0; i < micros; ++i) {
      sync.push_back(i + 1 == micros || rng.chance(40));
      all_reduce.push_back(i + 1 == micros || rng.chance(70));
    }
    for (int i = 0; i < net.layers; ++i) {
      if (rng.chance(10)) pass.skipped.insert(i);
    }
    pass.tap = rng.int_between(0, net.layers - 1);
    second_first = rng.chance(50);
    goes_on = rng.chance(50);
    clips = rng.chance(40);
    for (size_t i = 0; i < net.parameters.size(); ++i) {
      if (rng.chance(50)) penalised.push_back(i);
    }
  }

  std::string to_text() const {
    constexpr std::array<const char*, 6> kNames = {"plain", "two forwards", "two graphs",
                                                   "part",  "regularised",  "penalty"};
    return std::string(kNames[static_cast<size_t>(graph)]) + ", " + std::to_string(micros) +
           " batches, " + std::to_string(pass.skipped.size()) + " layers skipped" +
           (goes_on ? ", goes on" : "") + (second_first ? ", second first" : "");
  }

  Graph graph;
  int64_t rows;
  uint64_t seed;
  int micros = 1;
  std::vector<bool> sync, all_reduce;
  Pass pass;
  bool second_first = false;
  bool goes_on = false;  // after the part
  bool clips = false;
  std::vector<size_t> penalised;
};

inline bool recomputes(const Net& net) {
  for (const auto& module : net.root->modules()) {
    const auto* nest = dynamic_cast<const NestImpl*>(module.get());
    if (nest != nullptr && nest->recomputed) return true;
  }
  return false;
}

inline at::Tensor loss_of(const Side& side, const Batch& batch, Pass& pass) {
  return at::mse_loss(side.net.forward(batch.x, pass), batch.y);
}

/// Forwards and backwards of one batch.
inline void go(const Side& side, const StepPlan& plan, const Batch& batch) {
  using Graph = StepPlan::Graph;
  Pass pass = plan.pass;
  Pass other = plan.pass;
  const Batch twice = {(batch.x.detach() * 2).requires_grad_(), batch.y};
  switch (plan.graph) {
    case Graph::plain:
      loss_of(side, batch, pass).backward();
      return;
    case Graph::two_forwards:
      (loss_of(side, batch, pass) + loss_of(side, twice, other)).backward();
      return;
    case Graph::two_graphs: {
      at::Tensor first = loss_of(side, batch, pass);
      at::Tensor second = loss_of(side, twice, other);
      if (plan.second_first) std::swap(first, second);
      first.backward();
      second.backward();
      return;
    }
    case Graph::part: {
      const at::Tensor loss = loss_of(side, batch, pass);
      const bool has_part = pass.tapped.defined() && pass.tapped.requires_grad();
      if (has_part) pass.tapped.square().mean().backward({}, /*retain_graph=*/plan.goes_on);
      if (!has_part || plan.goes_on) loss.backward();
      return;
    }
    case Graph::regularised: {
      at::Tensor loss = loss_of(side, batch, pass);
      for (const size_t i : plan.penalised) {
        const at::Tensor& p = side.net.parameters[i];
        loss = loss + 0.1 * (i % 2 == 0 ? p.square().sum() : p.view({-1}).sin().sum());
      }
      loss.backward();
      return;
    }
    case Graph::penalty: {
      const at::Tensor loss = loss_of(side, batch, pass);
      if (recomputes(side.net)) {  // such a function has no second derivative
        loss.backward();
        return;
      }
      const at::Tensor slope =
          torch::autograd::grad({loss}, {batch.x}, {}, std::nullopt, /*create_graph=*/true)[0];
      // Of this rank's rows, whose losses are means over fewer of them.
      const double rows = static_cast<double>(batch.x.size(0));
      (loss + (slope * rows).square().sum() / rows).backward();
      return;
    }
  }
}

inline void backwards_of(const Side& side, const StepPlan& plan) {
  for (int i = 0; i < plan.micros; ++i) {
    const auto at = static_cast<size_t>(i);
    if (side.sharded) {
      set_requires_gradient_sync(*side.net.root, plan.sync[at]);
      set_requires_all_reduce(*side.net.root, plan.all_reduce[at]);
    }
    go(side, plan, side.batch(plan.seed + 2 * at, plan.rows));
  }
}

}  // namespace tessera::test
