#include "tessera/parallel/experts/token_exchange.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "tessera/base/errors.h"
#include "tessera/dtensor/held_value.h"
#include "tessera/exec/buffers.h"
#include "tessera/exec/wire.h"
#include "tessera/observe/call_site.h"

namespace tessera::parallel {
namespace {

using dtensor::held_value;
using dtensor::hold_value;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr std::string_view kTokenSite = "expert_parallel";

void scale_counts(std::vector<int64_t>& counts, int64_t by) {
  for (int64_t& count : counts) count *= by;
}

at::Tensor send_rows(const at::Tensor& rows, const RankGroup& group, std::vector<int64_t> send,
                     std::vector<int64_t> receive) {
  if (group.group == nullptr) return rows.detach().clone();
  auto shape = rows.sizes().vec();
  shape[0] = std::accumulate(receive.begin(), receive.end(), int64_t{0});
  const at::Tensor dense = rows.contiguous();
  const at::Tensor out = exec::empty_like_device(dense, shape, dense.scalar_type());
  int64_t width = exec::movable_scale(dense.scalar_type());
  for (int64_t dim = 1; dim < dense.dim(); ++dim) width *= dense.size(dim);
  scale_counts(send, width);
  scale_counts(receive, width);
  at::Tensor from = exec::as_movable(dense);
  at::Tensor to = exec::as_movable(out);
  const comm::CallSite site({.op = kTokenSite, .axis = group.axis});
  c10d::AllToAllOptions options;
  options.asyncOp = false;
  group.group->backend(dense.device().type())
      .alltoall_base(to, from, receive, send, options)
      ->wait();
  return out;
}

struct ExchangeRows : torch::autograd::Function<ExchangeRows> {
  static Variable forward(AutogradContext* ctx, const Variable& rows, const RankGroup& group,
                          const std::vector<int64_t>& send, const std::vector<int64_t>& receive) {
    hold_value(ctx, "group", group);
    ctx->saved_data["send"] = send;
    ctx->saved_data["receive"] = receive;
    return send_rows(rows, group, send, receive);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {exchange_rows(grads[0], held_value<RankGroup>(ctx, "group"),
                          ctx->saved_data["receive"].toIntVector(),
                          ctx->saved_data["send"].toIntVector()),
            Variable(), Variable(), Variable()};
  }
};

struct SumOverRanks : torch::autograd::Function<SumOverRanks> {
  static Variable forward(AutogradContext* ctx, const Variable& addend, const RankGroup& group) {
    hold_value(ctx, "group", group);
    return all_reduce_sum(addend, group);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {use_on_ranks(grads[0], held_value<RankGroup>(ctx, "group")), Variable()};
  }
};

struct UseOnRanks : torch::autograd::Function<UseOnRanks> {
  static Variable forward(AutogradContext* ctx, const Variable& whole, const RankGroup& group) {
    hold_value(ctx, "group", group);
    return whole.view_as(whole);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {sum_over_ranks(grads[0], held_value<RankGroup>(ctx, "group")), Variable()};
  }
};

}  // namespace

at::Tensor exchange_rows(const at::Tensor& rows, const RankGroup& group, std::vector<int64_t> send,
                         std::vector<int64_t> receive) {
  const auto ranks = static_cast<size_t>(group.size());
  require(send.size() == ranks && receive.size() == ranks, "exchange_rows: counts for ",
          send.size(), " and ", receive.size(), " ranks in a group of ", ranks);
  const int64_t total = std::accumulate(send.begin(), send.end(), int64_t{0});
  require(rows.dim() >= 1 && rows.size(0) == total, "exchange_rows: ", rows.size(0),
          " rows, but counts of ", total);
  return ExchangeRows::apply(rows, group, send, receive);
}

at::Tensor sum_over_ranks(const at::Tensor& addend, const RankGroup& group) {
  return group.group == nullptr ? addend : SumOverRanks::apply(addend, group);
}

at::Tensor use_on_ranks(const at::Tensor& whole, const RankGroup& group) {
  return group.group == nullptr ? whole : UseOnRanks::apply(whole, group);
}

at::Tensor all_reduce_sum(const at::Tensor& addend, const RankGroup& group) {
  const at::Tensor sum = addend.detach().clone(at::MemoryFormat::Contiguous);
  if (group.group == nullptr) return sum;
  std::vector<at::Tensor> list = {sum};
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  const comm::CallSite site({.op = kTokenSite, .axis = group.axis});
  group.group->backend(sum.device().type()).allreduce(list, options)->wait();
  return sum;
}

at::Tensor all_gather_counts(const at::Tensor& counts, const RankGroup& group) {
  if (group.group == nullptr) return counts.unsqueeze(0);
  auto shape = counts.sizes().vec();
  shape.insert(shape.begin(), group.size());
  at::Tensor out = at::empty(shape, counts.options());
  at::Tensor in = counts.contiguous();
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  const comm::CallSite site({.op = kTokenSite, .axis = group.axis});
  group.group->backend(in.device().type())._allgather_base(out, in, options)->wait();
  return out;
}

}  // namespace tessera::parallel
