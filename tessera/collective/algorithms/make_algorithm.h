#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "tessera/collective/algorithms/algorithms.h"
#include "tessera/collective/algorithms/pipelined_pack.h"

/// Creates the algorithm (algorithms.h) for the arguments of a collective, and decides which
/// arguments are supported.
namespace tessera::comm {

struct RankOf {
  int rank = 0;
  int size = 1;
};

/// Whether it is a contiguous CPU tensor, which messages can access directly.
bool is_plain(const at::Tensor& tensor);

/// Whether an algorithm can gather it from `size` ranks.
bool gathers(const at::Tensor& output, const at::Tensor& input, int size);

/// Whether an algorithm can reduce it; otherwise Gloo's own implementation runs or reports the
/// error.
bool reducible(const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op);

/// A contiguous tensor split into the pieces for each rank; without splits, all of equal size.
std::vector<at::Tensor> pieces_of(const at::Tensor& whole, const std::vector<int64_t>& splits,
                                  int size);

using JobPtr = std::unique_ptr<Algorithm>;

JobPtr gather_job(const at::Tensor& output, const at::Tensor& input, int size);
JobPtr all_to_all_job(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                      RankOf place);
JobPtr packing_all_to_all_job(const at::Tensor& output, const std::vector<int64_t>& splits,
                              Unpacked input, RankOf place);
JobPtr reduce_scatter_job(const at::Tensor& output, std::vector<at::Tensor> inputs,
                          const c10d::ReduceOp& op);
JobPtr all_reduce_job(const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op,
                      RankOf place);
/// A coalesced call.
JobPtr job_list(std::vector<JobPtr> jobs, c10d::OpType type);

}  // namespace tessera::comm
