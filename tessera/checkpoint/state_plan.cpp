#include "tessera/checkpoint/state_plan.h"

#include <algorithm>
#include <functional>
#include <map>

#include "tessera/base/errors.h"
#include "tessera/base/iota_vector.h"
#include "tessera/base/shape.h"
#include "tessera/checkpoint/agree.h"
#include "tessera/checkpoint/chunks.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/files/crc32.h"
#include "tessera/files/pickle/plain_pickle.h"

namespace tessera::checkpoint {
namespace {

/// What all ranks that hold a name must agree on, in one text: "S:" a sharding, "T:" dtype and
/// shape of a plain tensor, "V:" a value.
std::string describe(const std::string& name, const StateValue& value) {
  if (const auto* plain = std::get_if<PlainValue>(&value)) {
    files::PickleWriter out;
    write(out, *plain);
    const std::string pickled = out.finish();
    const auto sum = files::crc32(std::as_bytes(std::span(pickled.data(), pickled.size())));
    return join_text("V:", pickled.size(), " bytes, sum ", sum, ", ", *plain);
  }
  const auto& tensor = std::get<at::Tensor>(value);
  require(tensor.defined(), "save: ", name, " is an undefined tensor");
  require(!tensor.is_meta(), "save: ", name, " is on meta and has no values");
  require(tensor.layout() == at::kStrided, "save: ", name, " is not a dense tensor");
  if (is_dtensor(tensor)) {
    const at::Tensor shards = at_rest(tensor);
    const Sharding& as = sharding(shards);
    require(!as.has_partial(), "save: ", name, " is ", as,
            ": a Partial tensor has no values yet; redistribute it to Shard or Replicate first");
    return "S:" + as.to_text();
  }
  return join_text("T:", dtype_name(static_cast<DType>(tensor.scalar_type())), " ",
                   list_text(tensor.sizes()));
}

struct Described {
  std::string text;
  std::vector<int> holders;
};

using Description = std::map<std::string, Described>;

/// Names and descriptions as one message: "6:weight9:S:dp=2..."; any bytes may occur in both.
std::string message_of(const std::map<std::string, std::string>& described) {
  std::string out;
  for (const auto& [name, text] : described) {
    out += join_text(name.size(), ":", name, text.size(), ":", text);
  }
  return out;
}

std::string take_text(std::string_view& message) {
  const size_t colon = message.find(':');
  const auto size = static_cast<size_t>(std::stoull(std::string(message.substr(0, colon))));
  std::string out(message.substr(colon + 1, size));
  message.remove_prefix(colon + 1 + size);
  return out;
}

/// Merges what the ranks say; throws where they contradict each other.
Description merge(const std::vector<std::string>& messages) {
  Description out;
  for (size_t rank = 0; rank < messages.size(); ++rank) {
    for (std::string_view rest = messages[rank]; !rest.empty();) {
      const std::string name = take_text(rest);
      const std::string text = take_text(rest);
      auto [found, added] = out.try_emplace(name, Described{text, {}});
      require(added || found->second.text == text, "save: ", name, " is ", found->second.text,
              " on rank ", added ? 0 : found->second.holders[0], ", and ", text, " on rank ", rank,
              ": what ranks do not share needs names of its own");
      found->second.holders.push_back(static_cast<int>(rank));
    }
  }
  return out;
}

Description describe_state(const State& state, comm::RankWorld& world) {
  std::map<std::string, std::string> mine;
  on_all_ranks(world, [&] {
    for (const auto& [name, value] : state) mine.emplace(name, describe(name, value));
  });
  const std::string message = message_of(mine);
  const auto bytes = std::as_bytes(std::span(message.data(), message.size()));
  const auto digests = all_gather_text(world, join_text(message.size(), " ", files::crc32(bytes),
                                                        " ", std::hash<std::string>()(message)));
  const bool same =
      std::ranges::all_of(digests, [&](const std::string& d) { return d == digests[0]; });
  if (!same) return merge(all_gather_text(world, message));
  const auto everyone = iota_vector<int>(world.size());
  Description out;
  for (auto& [name, text] : mine) out.emplace(name, Described{std::move(text), everyone});
  return out;
}

/// The entry, and what ranks offer to write of it.
PlannedEntry offer_entry(const std::string& name, const Described& described, size_t index,
                         std::vector<dcp::Offer>& offers) {
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
    for (auto& held : dcp::all_held_boxes(as)) {
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
  const Description description = describe_state(state, world);
  StatePlan plan;
  std::vector<dcp::Offer> offers;
  for (const auto& [name, described] : description) {
    plan.entries.push_back(offer_entry(name, described, plan.entries.size(), offers));
  }
  for (auto& write : dcp::plan_writes(std::move(offers), {.world_size = world.size()})) {
    if (write.writer == world.rank()) plan.mine.push_back(std::move(write));
  }
  return plan;
}

}  // namespace tessera::checkpoint
