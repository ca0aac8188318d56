#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "tessera/base/api.h"
#include "tessera/collective/comm_op.h"

/// The collectives of c10d::Backend, individually: `_allgather_base` and `allgather` are two values
/// here, because ranks that mix them do not match. CommOp is the coarser classification used by
/// recorders and plans; comm_op() converts.
namespace tessera::comm {

enum class Collective : uint8_t {
  all_reduce,
  all_reduce_coalesced,
  all_reduce_sparse,
  reduce,
  broadcast,
  all_gather,
  all_gather_coalesced,
  all_gather_into_tensor,
  all_gather_into_tensor_coalesced,
  reduce_scatter,
  reduce_scatter_tensor,
  reduce_scatter_tensor_coalesced,
  all_to_all,
  all_to_all_single,
  gather,
  scatter,
  send,
  recv,
  recv_any_source,
  barrier,
};

TESSERA_API std::string_view collective_name(Collective collective);  ///< "all_gather_into_tensor"
TESSERA_API CommOp comm_op(Collective collective);                    ///< CommOp::all_gather
TESSERA_API c10d::OpType c10d_op_type(
    Collective collective);  ///< the type that a c10d::Work reports

TESSERA_API std::string_view reduce_op_name(c10d::ReduceOp::RedOpType op);  ///< "sum", "premul_sum"

}  // namespace tessera::comm
