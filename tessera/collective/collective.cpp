#include "tessera/collective/collective.h"

#include <array>
#include <utility>

namespace tessera::comm {
namespace {

using c10d::OpType;
using enum Collective;

struct Row {
  Collective collective;
  CommOp op;
  OpType c10d_op;
  std::string_view name;
};

constexpr std::array<Row, 20> kRows = {{
    {all_reduce, CommOp::all_reduce, OpType::ALLREDUCE, "all_reduce"},
    {all_reduce_coalesced, CommOp::all_reduce, OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced"},
    {all_reduce_sparse, CommOp::all_reduce, OpType::_ALLREDUCE_SPARSE, "all_reduce_sparse"},
    {reduce, CommOp::reduce, OpType::REDUCE, "reduce"},
    {broadcast, CommOp::broadcast, OpType::BROADCAST, "broadcast"},
    {all_gather, CommOp::all_gather, OpType::ALLGATHER, "all_gather"},
    {all_gather_coalesced, CommOp::all_gather, OpType::ALLGATHER_COALESCED, "all_gather_coalesced"},
    {all_gather_into_tensor, CommOp::all_gather, OpType::_ALLGATHER_BASE, "all_gather_into_tensor"},
    {all_gather_into_tensor_coalesced, CommOp::all_gather, OpType::ALLGATHER_COALESCED,
     "all_gather_into_tensor_coalesced"},
    {reduce_scatter, CommOp::reduce_scatter, OpType::REDUCE_SCATTER, "reduce_scatter"},
    {reduce_scatter_tensor, CommOp::reduce_scatter, OpType::_REDUCE_SCATTER_BASE,
     "reduce_scatter_tensor"},
    // Its own type has a name only since torch 2.12; this one exists in all versions.
    {reduce_scatter_tensor_coalesced, CommOp::reduce_scatter, OpType::_REDUCE_SCATTER_BASE,
     "reduce_scatter_tensor_coalesced"},
    {all_to_all, CommOp::all_to_all, OpType::ALLTOALL, "all_to_all"},
    {all_to_all_single, CommOp::all_to_all, OpType::ALLTOALL_BASE, "all_to_all_single"},
    {gather, CommOp::gather, OpType::GATHER, "gather"},
    {scatter, CommOp::scatter, OpType::SCATTER, "scatter"},
    {send, CommOp::send, OpType::SEND, "send"},
    {recv, CommOp::recv, OpType::RECV, "recv"},
    {recv_any_source, CommOp::recv, OpType::RECVANYSOURCE, "recv_any_source"},
    {barrier, CommOp::barrier, OpType::BARRIER, "barrier"},
}};

constexpr bool rows_follow_the_enum() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].collective) != i) return false;
  }
  return true;
}
static_assert(rows_follow_the_enum());

}  // namespace

std::string_view collective_name(Collective collective) {
  return kRows[static_cast<size_t>(collective)].name;
}

CommOp comm_op(Collective collective) { return kRows[static_cast<size_t>(collective)].op; }

c10d::OpType c10d_op_type(Collective collective) {
  return kRows[static_cast<size_t>(collective)].c10d_op;
}

std::string_view reduce_op_name(c10d::ReduceOp::RedOpType op) {
  constexpr std::array<std::string_view, 10> kNames = {
      "sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum", "unused"};
  return op < kNames.size() ? kNames[op] : "unknown";
}

}  // namespace tessera::comm
