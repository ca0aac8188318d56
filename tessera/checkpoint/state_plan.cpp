#include "tessera/checkpoint/state_plan.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/checkpoint/state_description.h"

namespace tessera::checkpoint {
namespace {

/// The boxes of a tensor that is sharded as `as` on the first of `ways`, each with the ranks that
/// can write it: those that hold it and have the name in their state.
std::vector<dcp::HeldBox> boxes_of(const std::string& name, const Sharding& as,
                                   const std::vector<HeldAs>& ways) {
  std::vector<dcp::HeldBox> out = dcp::all_held_boxes(as);
  const auto keep_holders = [&](std::vector<int>& ranks, const HeldAs& way) {
    std::erase_if(ranks, [&](int rank) { return !std::ranges::binary_search(way.holders, rank); });
  };
  std::vector<int> first_ranks;  // of each box, by the mesh
  for (auto& held : out) {
    first_ranks.push_back(held.ranks[0]);
    keep_holders(held.ranks, ways[0]);
  }
  for (size_t way = 1; way < ways.size(); ++way) {
    auto copies = dcp::all_held_boxes(Sharding::parse(std::string_view(ways[way].text).substr(2)));
    for (size_t i = 0; i < out.size(); ++i) {  // every mesh has the boxes in the same order
      keep_holders(copies[i].ranks, ways[way]);
      out[i].ranks.insert(out[i].ranks.end(), copies[i].ranks.begin(), copies[i].ranks.end());
    }
  }
  for (size_t i = 0; i < out.size(); ++i) {
    require(!out[i].ranks.empty(), "save: ", name, " is ", as, " on rank ", ways[0].holders[0],
            ", and rank ", first_ranks[i], ", which holds ", out[i].box,
            " of it, does not have the name in its state");
  }
  return out;
}

/// The entry, and what ranks offer to write of it.
PlannedEntry offer_entry(const std::string& name, const std::vector<HeldAs>& ways, size_t index,
                         std::vector<dcp::Offer>& offers) {
  const HeldAs& described = ways[0];
  const std::string_view text = std::string_view(described.text).substr(2);
  PlannedEntry entry{.name = name, .shape = {}};
  if (described.text[0] == 'V') {
    offers.push_back({index, {{}, described.holders}, 0});
    return entry;
  }
  entry.is_tensor = true;
  if (described.text[0] == 'S') {
    const Sharding as = Sharding::parse(text);
    entry.dtype = as.dtype();
    entry.shape.assign(as.shape().begin(), as.shape().end());
    for (auto& held : boxes_of(name, as, ways)) {
      const auto bytes = static_cast<uint64_t>(held.box.numel() * dtype_bytes(as.dtype()));
      offers.push_back({index, std::move(held), bytes});
    }
    return entry;
  }
  Scanner scanner(text);
  entry.dtype = *dtype_from_name(scanner.expect_name("a dtype"));
  while (const auto size = scanner.accept_int()) {
    entry.shape.push_back(*size);
    scanner.accept(',');
  }
  if (numel_of(entry.shape) == 0) return entry;
  Box box{std::vector<int64_t>(entry.shape.size(), 0), entry.shape};
  const auto bytes = static_cast<uint64_t>(box.numel() * dtype_bytes(entry.dtype));
  offers.push_back({index, {std::move(box), described.holders}, bytes});
  return entry;
}

}  // namespace

StatePlan plan_state(const State& state, comm::RankWorld& world) {
  const StateDescription description = describe_state(state, world);
  StatePlan plan;
  std::vector<dcp::Offer> offers;
  for (const auto& [name, ways] : description) {
    plan.entries.push_back(offer_entry(name, ways, plan.entries.size(), offers));
  }
  for (auto& write : dcp::plan_writes(std::move(offers), {.world_size = world.size()})) {
    if (write.writer == world.rank()) plan.mine.push_back(std::move(write));
  }
  return plan;
}

}  // namespace tessera::checkpoint
