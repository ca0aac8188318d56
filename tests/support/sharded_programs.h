#pragma once

#include <filesystem>

/// Hand-written sharded programs, so that tests of running them do not depend on the partitioner.
/// Each function writes DIR (manifest.json, rank_<r>.pt2) from tests/program/data/linear.pt2, which
/// is linear(f32 4x3) -> f32 4x2.
namespace tessera::test {

/// tp=2: each rank computes one column of the result, which stays sharded.
void write_columns(const std::filesystem::path& directory);

/// tp=2: the weight is sharded along its input dim (2 and 1 of 3 columns); the results are summed
/// by an all_reduce over group "0", and the bias is added after it.
void write_rows(const std::filesystem::path& directory);

/// dp=2: each rank computes 2 of the 4 rows; input and output are sharded.
void write_batch(const std::filesystem::path& directory);

}  // namespace tessera::test
