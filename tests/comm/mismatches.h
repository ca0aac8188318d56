#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

/// Calls in which rank 1 does something else than the other two of a group of three: shared by the
/// tests of what happens without and with checked mode.
namespace tessera::comm {

struct Mismatch {
  std::string name;
  std::function<void(int rank, c10d::Backend& links)> call;
  /// What the error must say of the two ranks.
  std::string difference;
};

inline std::vector<Mismatch> mismatches() {
  using Tensors = std::vector<at::Tensor>;
  const auto all_reduce = [](c10d::Backend& links, at::Tensor t,
                             c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM) {
    Tensors tensors = {std::move(t)};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    links.allreduce(tensors, options)->wait();
  };
  return {
      {"op",
       [=](int rank, c10d::Backend& links) {
         if (rank == 1) {
           links.barrier()->wait();
         } else {
           all_reduce(links, at::ones({4}));
         }
       },
       "calls barrier"},
      {"longer",
       [=](int rank, c10d::Backend& links) { all_reduce(links, at::ones({rank == 1 ? 8 : 4})); },
       "calls all_reduce (sum) of 8 float32"},
      {"shorter",
       [=](int rank, c10d::Backend& links) { all_reduce(links, at::ones({rank == 1 ? 2 : 4})); },
       "calls all_reduce (sum) of 2 float32"},
      {"much_longer",
       [=](int rank, c10d::Backend& links) {
         all_reduce(links, at::ones({rank == 1 ? 2 << 20 : 1 << 20}));
       },
       "calls all_reduce (sum) of 2097152 float32"},
      {"dtype",
       [=](int rank, c10d::Backend& links) {
         all_reduce(links, at::ones({4}, rank == 1 ? at::kInt : at::kFloat));
       },
       "calls all_reduce (sum) of 4 int32"},
      {"reduction",
       [=](int rank, c10d::Backend& links) {
         all_reduce(links, at::ones({4}), rank == 1 ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM);
       },
       "calls all_reduce (max) of 4 float32"},
      {"root",
       [](int rank, c10d::Backend& links) {
         Tensors t = {at::ones({4})};
         c10d::BroadcastOptions options;
         options.rootRank = rank == 1 ? 1 : 2;
         links.broadcast(t, options)->wait();
         links.barrier()->wait();  // a rank that broadcast reached may be done: it meets them here
       },
       "calls broadcast from rank 1 of 4 float32"},
      {"gathered",
       [](int rank, c10d::Backend& links) {
         auto in = at::ones({rank == 1 ? 2 : 4});
         auto out = at::empty({in.numel() * 3});
         links._allgather_base(out, in)->wait();
       },
       "calls all_gather_into_tensor of 2 -> 6 float32"},
      {"scattered",
       [](int rank, c10d::Backend& links) {
         auto out = at::empty({rank == 1 ? 2 : 4});
         auto in = at::ones({out.numel() * 3});
         links._reduce_scatter_base(out, in)->wait();
       },
       "calls reduce_scatter_tensor (sum) of 6 -> 2 float32"},
      {"splits",
       [](int rank, c10d::Backend& links) {
         std::vector<int64_t> in_splits = {2, 2, 2};
         std::vector<int64_t> out_splits = {2, 2, 2};
         if (rank == 1) in_splits[0] = 4;
         auto in = at::ones({rank == 1 ? 8 : 6});
         auto out = at::empty({6});
         links.alltoall_base(out, in, out_splits, in_splits)->wait();
         links.barrier()->wait();  // only ranks 0 and 1 disagree; rank 2 meets them here
       },
       "rank 1 gives 4 elements to rank 0, which expects 2 from it"},
  };
}

}  // namespace tessera::comm
