#include "tessera/checkpoint/state_description.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/base/iota_vector.h"
#include "tessera/checkpoint/agree.h"
#include "tessera/checkpoint/chunks.h"
#include "tessera/checkpoint/stored/tensor_bytes.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/files/crc32.h"
#include "tessera/files/pickle/plain_pickle.h"

namespace tessera::checkpoint {
namespace {

using Texts = std::map<std::string, std::string>;  // by name

/// Names the tensor, which an error of dtype_name does not.
std::string_view dtype_text(const std::string& name, const at::Tensor& tensor) {
  try {
    return dtype_name(static_cast<DType>(tensor.scalar_type()));
  } catch (const NotSupported& error) {
    throw NotSupported(join_text("save: ", name, ": ", error.what()));
  }
}

std::string describe(const std::string& name, const StateValue& value) {
  if (const auto* plain = std::get_if<PlainValue>(&value)) {
    files::PickleWriter out;
    write(out, *plain);
    const std::string pickled = out.finish();
    const auto sum = files::crc32(std::as_bytes(std::span(pickled.data(), pickled.size())));
    return join_text("V:", pickled.size(), " ", sum, ":", *plain);
  }
  const auto& tensor = std::get<at::Tensor>(value);
  require(tensor.defined(), "save: ", name, " is an undefined tensor");
  require(!tensor.is_meta(), "save: ", name, " is on meta and has no values");
  require(!tensor.is_nested() && tensor.layout() == at::kStrided, "save: ", name,
          " is not a dense tensor");
  const std::string_view dtype = dtype_text(name, tensor);
  if (is_dtensor(tensor)) {
    const at::Tensor shards = at_rest(tensor);
    const Sharding& as = sharding(shards);
    require(!as.has_partial(), "save: ", name, " is ", as,
            ": a Partial tensor has no values yet; redistribute it to Shard or Replicate first");
    return "S:" + as.to_text();
  }
  return join_text("T:", dtype, " ", list_text(tensor.sizes()));
}

/// Names and texts as one message: "6:weight9:S:dp=2..."; any bytes may occur in both.
std::string message_of(const Texts& texts) {
  std::string out;
  for (const auto& [name, text] : texts) {
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

/// Calls `visit(rank, name, text)` with what each rank has sent.
template <typename Visit>
void for_each_text(const std::vector<std::string>& messages, const Visit& visit) {
  for (size_t rank = 0; rank < messages.size(); ++rank) {
    for (std::string_view rest = messages[rank]; !rest.empty();) {
      const std::string name = take_text(rest);
      visit(static_cast<int>(rank), name, take_text(rest));
    }
  }
}

/// Whether two shardings differ in the ranks of their meshes alone: then the same coordinates hold
/// the same boxes.
bool differ_in_ranks(const std::string& a, const std::string& b) {
  if (a[0] != 'S' || b[0] != 'S') return false;
  const Sharding first = Sharding::parse(std::string_view(a).substr(2));
  const Sharding second = Sharding::parse(std::string_view(b).substr(2));
  return std::ranges::equal(first.mesh().axes(), second.mesh().axes()) &&
         first.placements_text() == second.placements_text() && first.dtype() == second.dtype() &&
         std::ranges::equal(first.shape(), second.shape());
}

/// Merges what the ranks say; throws where they contradict each other.
StateDescription merge(const std::vector<std::string>& messages) {
  StateDescription out;
  for_each_text(messages, [&](int rank, const std::string& name, std::string text) {
    auto& ways = out[name];
    auto found = std::ranges::find(ways, text, &HeldAs::text);
    if (found == ways.end()) {
      require(ways.empty() || differ_in_ranks(ways[0].text, text), "save: ", name, " is ",
              ways.empty() ? "" : readable(ways[0].text), " on rank ",
              ways.empty() ? 0 : ways[0].holders[0], ", and ", readable(text), " on rank ", rank,
              ": what ranks do not share needs names of its own");
      found = ways.insert(ways.end(), HeldAs{std::move(text), {}});
    }
    found->holders.push_back(rank);
  });
  return out;
}

/// The checksums of this rank's boxes, in their order.
std::string sums_of(const at::Tensor& tensor) {
  std::string out;
  for (const auto& box : chunk_list(tensor)) {
    uint32_t sum = 0;
    visit_bytes(tensor_box(tensor, box),
                [&](std::span<const std::byte> part) { sum = files::crc32(part, sum); });
    out += join_text(sum, " ");
  }
  return out;
}

/// Throws where copies on several meshes are not equal. Collective, if there are any.
void compare_copies(const State& state, const StateDescription& description,
                    comm::RankWorld& world) {
  const auto has_copies = [](const auto& entry) { return entry.second.size() > 1; };
  if (std::ranges::none_of(description, has_copies)) return;
  Texts mine;
  on_all_ranks(world, [&] {
    for (const auto& [name, ways] : description) {
      const auto found = state.find(name);
      if (ways.size() == 1 || found == state.end()) continue;
      mine.emplace(name, sums_of(std::get<at::Tensor>(found->second)));
    }
  });
  std::map<std::pair<std::string, Coordinate>, std::pair<int, std::string>> seen;
  for_each_text(all_gather_text(world, message_of(mine)), [&](int rank, const std::string& name,
                                                              std::string sums) {
    const auto& ways = description.at(name);
    const auto way = std::ranges::find_if(
        ways, [&](const HeldAs& as) { return std::ranges::count(as.holders, rank) > 0; });
    const DeviceMesh mesh = Sharding::parse(std::string_view(way->text).substr(2)).mesh();
    const auto coordinate = mesh.coordinate_of(rank);
    if (!coordinate) return;
    const auto [first, added] = seen.try_emplace(std::pair(name, *coordinate), rank, sums);
    require(added || first->second.second == sums, "save: ", name, " is ", readable(ways[0].text),
            " on rank ", first->second.first, " and ", readable(way->text), " on rank ", rank,
            ", and their elements are not equal: what ranks do not share needs names of its own");
  });
}

}  // namespace

std::string readable(const std::string& text) {
  constexpr size_t kMost = 200;
  const std::string rest = text.substr(2);
  if (text[0] == 'S') return rest;
  if (text[0] == 'T') return "a plain tensor (" + rest + ")";
  const std::string value = rest.substr(rest.find(':') + 1);
  return "the value " + (value.size() > kMost ? value.substr(0, kMost) + "..." : value);
}

StateDescription describe_state(const State& state, comm::RankWorld& world) {
  Texts mine;
  on_all_ranks(world, [&] {
    for (const auto& [name, value] : state) mine.emplace(name, describe(name, value));
  });
  const std::string message = message_of(mine);
  const auto bytes = std::as_bytes(std::span(message.data(), message.size()));
  const auto digests = all_gather_text(world, join_text(message.size(), " ", files::crc32(bytes),
                                                        " ", std::hash<std::string>()(message)));
  const bool same =
      std::ranges::all_of(digests, [&](const std::string& d) { return d == digests[0]; });
  if (!same) {
    StateDescription out = merge(all_gather_text(world, message));
    compare_copies(state, out, world);
    return out;
  }
  const auto everyone = iota_vector<int>(world.size());
  StateDescription out;
  for (auto& [name, text] : mine) out[name].push_back({std::move(text), everyone});
  return out;
}

}  // namespace tessera::checkpoint
