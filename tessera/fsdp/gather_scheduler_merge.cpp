// Merges groups into buckets once the order of a step is known.
#include <algorithm>

#include "tessera/fsdp/gather_scheduler.h"
#include "tessera/fsdp/order/merge.h"
#include "tessera/fsdp/param_group.h"

namespace tessera::fsdp {

/// Sequences of groups that are consecutive in the step, have not been considered for merging, and
/// can share a collective.
std::vector<std::vector<ParamGroup*>> GatherScheduler::rows_to_merge(
    const StepOrder::Step& step) const {
  std::vector<ParamGroup*> seen;
  for (const StepOrder::Run& run : step) {
    if (run.bucket == nullptr) continue;
    for (ParamGroup* group : run.bucket->members()) seen.push_back(group);
  }
  seen.insert(seen.end(), reduced_whole_.begin(), reduced_whole_.end());
  std::vector<std::vector<ParamGroup*>> rows;
  std::set<ParamGroup*> placed;
  bool continues = false;
  for (ParamGroup* group : seen) {
    if (settled_.contains(group)) {
      continues = false;
    } else if (placed.insert(group).second) {
      continues = continues && Bucket::can_join(*rows.back().back(), *group);
      if (!continues) rows.emplace_back();
      rows.back().push_back(group);
      continues = true;
    }
  }
  return rows;
}

/// All ranks see the same order and sizes, so they decide identically.
void GatherScheduler::merge(const StepOrder::Step& step) {
  const auto rows = rows_to_merge(step);
  reduced_whole_.clear();
  if (rows.empty()) return;
  std::vector<std::shared_ptr<Bucket>> before;  // keeps them alive until they are renamed
  for (const auto& row : rows) {
    std::vector<int64_t> sizes;
    for (ParamGroup* group : row) {
      settled_.insert(group);
      before.push_back(group->bucket());
      sizes.push_back(group->bucket()->gathered_bytes());
    }
    auto at = row.begin();
    for (const size_t count : merge_neighbours(sizes, row[0]->options().merge_bytes)) {
      const auto end = at + static_cast<std::ptrdiff_t>(count);
      if (count > 1) {
        for (auto member = at; member != end; ++member) (*member)->bucket()->release();
        Bucket::make({at, end});
      }
      at = end;
    }
  }
  order_.rename([](Bucket* bucket) { return bucket->members()[0]->bucket().get(); });
}

}  // namespace tessera::fsdp
