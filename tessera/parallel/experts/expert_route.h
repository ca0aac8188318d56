#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/mesh/device_mesh.h"
#include "tessera/parallel/experts/expert_parallel.h"
#include "tessera/parallel/experts/token_exchange.h"

/// Which rows go to which rank and expert, from what tokens chose. The ranks exchange their counts
/// (one all_gather); everything else follows from these on every rank alike.
///
///   2 ranks, 4 experts, one choice each:      rank 0 chose 0 2 0      rank 1 chose 3 0 2
///   sent, sorted by expert                    0 0 | 2                 0 | 2 3
///   received, sorted by expert                0 0 0                   2 2 3
namespace tessera::parallel {

class ExpertRoute {
 public:
  /// `choice`: T x K of this rank. `tokens` is the group of all ranks with tokens, `experts` the
  /// one of the expert axis.
  ExpertRoute(const at::Tensor& choice, const RankGroup& tokens, const RankGroup& experts,
              const ExpertOptions& options);

  const ExpertLoad& load() const { return load_; }
  const ExpertRows& rows() const { return rows_; }
  ExpertRows& rows() { return rows_; }

  /// The rows of this rank's experts, sorted by expert.
  at::Tensor send(const at::Tensor& tokens) const;
  /// The gated sum of what the experts returned, for each token.
  at::Tensor return_sum(const at::Tensor& computed, const at::Tensor& gate) const;

 private:
  void keep_within_capacity(const std::vector<std::vector<int64_t>>& counts, int64_t pairs,
                            const ExpertOptions& options);
  void plan_messages(const RankGroup& tokens, const ExpertOptions& options);
  void sort_pairs(const at::Tensor& choice, const std::vector<int64_t>& counts, size_t me);

  RankGroup experts_;
  int64_t tokens_ = 0;
  int64_t choices_ = 0;
  ExpertLoad load_;
  ExpertRows rows_;
  std::vector<std::vector<int64_t>> kept_;  // by rank of the token group, by expert
  std::vector<int64_t> send_;               // rows, by rank of the expert group
  std::vector<int64_t> receive_;
  at::Tensor pairs_;      // (token, choice) pairs that are sent, in the order in which they are
  at::Tensor by_expert_;  // received rows in the order of experts
  at::Tensor by_rank_;    // the inverse
};

}  // namespace tessera::parallel
