#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "tessera/checkpoint/state_plan.h"
#include "tessera/dcp/items.h"
#include "tessera/dcp/metadata.h"

/// The files of a checkpoint in PyTorch's format: one of each rank with its items, and what rank 0
/// says about all of them.
namespace tessera::checkpoint {

/// What this rank writes, in the order of plan.mine: plain tensors that share the state's memory,
/// and values.
std::vector<StateValue> my_parts(const State& state, const StatePlan& plan);

/// The contents of one item: a value, or the bytes of a tensor, which are produced while they are
/// written.
struct ItemContents {
  std::variant<PlainValue, dcp::WriteBytes> contents;
  uint64_t bytes = 0;  ///< of a tensor
};

/// Writes and syncs this rank's file. Returns where the items are and the checksums, as text for
/// write_description. `on_progress` may be empty.
using OnProgress = std::function<void(uint64_t bytes, uint64_t total)>;
std::string write_my_file(const StatePlan& plan, const std::vector<StateValue>& parts, int rank,
                          const std::filesystem::path& directory, const OnProgress& on_progress);
/// The same of items that are made while they are written, one for each of plan.mine.
std::string write_items_file(const StatePlan& plan, const std::vector<ItemContents>& items,
                             int rank, const std::filesystem::path& directory,
                             const OnProgress& on_progress);

/// Writes and syncs .metadata and the checksums, from the reports of all ranks.
void write_description(const StatePlan& plan, const std::vector<std::string>& reports,
                       const std::map<std::string, dcp::Path>& paths,
                       const std::filesystem::path& directory);

}  // namespace tessera::checkpoint
