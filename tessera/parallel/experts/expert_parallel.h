#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/mesh/device_mesh.h"

/// Expert parallelism: a layer of experts, of which each rank of a mesh axis holds some. Tokens are
/// sent to the ranks of the experts that they chose, computed there and sent back.
///
///   auto x = ...;                                              // tokens x D: S0 over dp and ep
///   auto [gate, choice] = torch::topk(router(x).softmax(-1), 2);
///   auto result = expert_parallel(
///       x, choice, gate,
///       [&](const at::Tensor& rows, const ExpertRows& experts) {
///         return experts.matmul(torch::silu(experts.matmul(rows, up)), down);
///       },
///       {.experts = 8, .axis = "ep"});                         // up, down: 8 x D x F: S0 over ep
///   x = x + result.out;
///
/// With 4 ranks, 8 experts and 100 tokens, each of which chooses 2: ranks exchange 8 counts each
/// (one all_gather), then the rows (one all_to_all), and the results (another). How many rows go
/// where is known only then, and no decision, sharding or plan is made for it.
///
/// Results do not depend on the number of ranks: an expert gets its rows in the order of the global
/// tokens, and capacity is counted in that order.
namespace tessera {

struct TESSERA_API ExpertOptions {
  int64_t experts = 0;  ///< of all ranks; rank i of the axis holds those that Shard(0) gives it
  std::string axis = "ep";
  /// An expert accepts at most ceil(factor * tokens * choices / experts) rows, over all ranks;
  /// later ones are dropped: this expert adds nothing to their result. No value: nothing is
  /// dropped.
  std::optional<double> capacity_factor = std::nullopt;
};

/// What the experts of all ranks were asked to do in one call.
struct TESSERA_API ExpertLoad {
  std::vector<int64_t> routed;  ///< by expert: rows that chose it
  std::vector<int64_t> kept;    ///< by expert: rows that it computed
  int64_t capacity = 0;         ///< rows that an expert accepts; 0: any number
  int64_t dropped() const;
  /// The largest of `kept` over the mean; 1 is perfect balance. 0 without rows.
  double imbalance() const;
  std::string to_text() const;
};

/// The rows of this rank's experts, sorted by expert.
struct TESSERA_API ExpertRows {
  std::vector<int64_t> counts;  ///< rows of each local expert
  int64_t first_expert = 0;
  std::vector<std::string> token_axes;  ///< axes over which tokens are sharded

  /// rows @ weight[expert] for each row: grouped_matmul.h.
  at::Tensor matmul(const at::Tensor& rows, const at::Tensor& weight) const;
};

/// Maps n x D rows to n x any width. Called once on every rank, also if n is 0.
using ExpertFunction = std::function<at::Tensor(const at::Tensor& rows, const ExpertRows& experts)>;

struct TESSERA_API ExpertResult {
  at::Tensor out;
  ExpertLoad load;
};

/// tokens: T x D. choice: T x K, int64, the experts of each token. gate: T x K, the weight of each.
/// All three are sharded in dim 0 over the expert axis, and equally over any other axes; the result
/// is sharded like the tokens: sum over k of gate[t, k] * function(tokens[t]) of choice[t, k].
/// Differentiable in tokens, gate and whatever `function` uses. Collective over these axes; throws
/// on ranks outside of the mesh.
TESSERA_API ExpertResult expert_parallel(const at::Tensor& tokens, const at::Tensor& choice,
                                         const at::Tensor& gate, const ExpertFunction& function,
                                         const ExpertOptions& options);

/// The same on local tensors: this rank's tokens, in the order of ranks on `token_axes` (default:
/// the expert axis alone), of which the expert axis must be one.
TESSERA_API ExpertResult expert_parallel_local(const at::Tensor& tokens, const at::Tensor& choice,
                                               const at::Tensor& gate,
                                               const ExpertFunction& function,
                                               const DeviceMesh& mesh, const ExpertOptions& options,
                                               std::vector<std::string> token_axes = {});

}  // namespace tessera
