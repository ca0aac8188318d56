#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "tessera/base/api.h"

/// The kinds of communication, with the names that recorder, checks, errors and tests use. c10d's
/// variants of one kind (`_allgather_base`, `allgather`, the coalesced forms) share a name.
namespace tessera::comm {

enum class CommOp : uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  scatter,
  gather,
  reduce,
  send,
  recv,
  barrier,
};

inline constexpr int kCommOps = 11;

TESSERA_API std::string_view op_name(CommOp op);  ///< "all_reduce"
TESSERA_API std::optional<CommOp> op_of_name(
    std::string_view name);  ///< the reverse; nullopt if unknown

}  // namespace tessera::comm
