#include "tessera/collective/algorithms/make_algorithm.h"

#include "tessera/base/errors.h"
#include "tessera/collective/algorithms/flat_view.h"

namespace tessera::comm {

using Tensors = std::vector<at::Tensor>;

namespace {

void check_own_piece(int64_t given, int64_t taken) {
  require(given == taken, "all_to_all: this rank keeps ", given, " elements but expects ", taken,
          " from itself");
}

}  // namespace

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.device().is_cpu() &&
         tensor.is_contiguous();
}

bool gathers(const at::Tensor& output, const at::Tensor& input, int size) {
  return is_plain(output) && is_plain(input) && output.numel() == input.numel() * size &&
         output.scalar_type() == input.scalar_type();
}

bool reducible(const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op) {
  return is_plain(output) && is_plain(input) && output.scalar_type() == input.scalar_type() &&
         op.op_ != c10d::ReduceOp::PREMUL_SUM;
}

Tensors pieces_of(const at::Tensor& whole, const std::vector<int64_t>& splits, int size) {
  const int64_t rows = whole.dim() == 0 ? 1 : whole.size(0);
  const int64_t row = rows == 0 ? 0 : whole.numel() / rows;
  Tensors pieces;
  int64_t at = 0;
  for (int i = 0; i < size; ++i) {
    const int64_t count = splits.empty() ? whole.numel() / size : row * splits[size_t(i)];
    pieces.push_back(flat_view(whole, at, count));
    at += count;
  }
  return pieces;
}

JobPtr gather_job(const at::Tensor& output, const at::Tensor& input, int size) {
  auto job = std::make_unique<MoveAlgorithm>(Tensors(static_cast<size_t>(size), flat_view(input)),
                                             pieces_of(output, {}, size));
  job->type = c10d::OpType::_ALLGATHER_BASE;
  job->title = "gloo:all_gather";
  job->inputs = {input};
  job->outputs = {output};
  return job;
}

JobPtr all_to_all_job(Tensors outputs, Tensors inputs, RankOf place) {
  const auto me = static_cast<size_t>(place.rank);
  check_own_piece(inputs[me].numel(), outputs[me].numel());
  auto job =
      std::make_unique<MoveAlgorithm>(inputs, outputs, MoveAlgorithm::Options{.in_chunks = true});
  job->type = c10d::OpType::ALLTOALL;
  job->title = "gloo:all_to_all";
  job->inputs = std::move(inputs);
  job->outputs = std::move(outputs);
  return job;
}

JobPtr packing_all_to_all_job(const at::Tensor& output, const std::vector<int64_t>& splits,
                              Unpacked input, RankOf place) {
  const auto me = static_cast<size_t>(place.rank);
  check_own_piece(input.splits[me], splits[me]);
  auto job =
      std::make_unique<PackAlgorithm>(std::move(input), pieces_of(output, splits, place.size));
  job->type = c10d::OpType::ALLTOALL_BASE;
  job->title = "gloo:all_to_all";
  job->outputs = {output};
  return job;
}

JobPtr reduce_scatter_job(const at::Tensor& output, Tensors inputs, const c10d::ReduceOp& op) {
  ReduceAlgorithm::Parts parts;
  for (const auto& input : inputs) parts.give.push_back(flat_view(input));
  parts.result = flat_view(output);
  auto job = std::make_unique<ReduceAlgorithm>(std::move(parts), op.op_);
  job->type = c10d::OpType::_REDUCE_SCATTER_BASE;
  job->title = "gloo:reduce_scatter";
  job->inputs = std::move(inputs);
  job->outputs = {output};
  return job;
}

JobPtr all_reduce_job(const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op,
                      RankOf place) {
  auto job = std::make_unique<ReduceAlgorithm>(
      ReduceAlgorithm::all_reduce_parts(input, output, place.rank, place.size), op.op_);
  job->type = c10d::OpType::ALLREDUCE;
  job->title = "gloo:all_reduce";
  job->inputs = {input};
  job->outputs = {output};
  return job;
}

JobPtr job_list(std::vector<JobPtr> jobs, c10d::OpType type) {
  const char* title = jobs.empty() ? "" : jobs[0]->title;
  auto list = std::make_unique<AlgorithmList>(std::move(jobs));
  list->type = type;
  list->title = title;
  return list;
}

}  // namespace tessera::comm
