#pragma once

#include <cstdint>
#include <optional>

#include "tessera/program/graph.h"

namespace tessera::program {

/// What a value is an index into: the rows of the smallest embedding table that is looked up with
/// it, directly or through views and casts. Nothing if there is none.
///
///   embedding(weight [64, 8], tokens.view(-1))        64 for tokens
std::optional<int64_t> rows_indexed_by(const Graph& graph, ValueId value);

}  // namespace tessera::program
