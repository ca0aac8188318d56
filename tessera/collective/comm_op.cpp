#include "tessera/collective/comm_op.h"

#include <algorithm>
#include <array>

namespace tessera::comm {
namespace {

constexpr std::array<std::string_view, kCommOps> kNames = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "scatter",
    "gather",     "reduce",     "send",           "recv",       "barrier"};

}  // namespace

std::string_view op_name(CommOp op) { return kNames.at(static_cast<size_t>(op)); }

std::optional<CommOp> op_of_name(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<CommOp>(found - kNames.begin());
}

}  // namespace tessera::comm
