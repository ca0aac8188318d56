#include "tessera/dtensor/random/same_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "tessera/base/errors.h"
#include "tessera/comm/rank_generator.h"
#include "tessera/comm/world.h"
#include "tessera/comm/world_end.h"
#include "tessera/observe/call_site.h"

namespace tessera::dtensor {
namespace {

constexpr size_t kMostSeeds = 1024;

/// What the ranks of a group have agreed on.
struct Agreed {
  /// By device type: the seed of the default generators.
  std::map<c10::DeviceType, uint64_t> of_defaults;
  /// Seeds of generators created by the program.
  std::set<uint64_t> of_others;
};

struct Agreements {
  std::mutex mutex;
  std::map<std::string, std::map<std::string, Agreed>> by_world_and_group;
};

Agreements& agreements() {
  static auto* all = [] {
    auto* made = new Agreements();
    comm::on_world_end([made](const World& world) {
      const auto* ended = dynamic_cast<const comm::RankWorld*>(&world);
      if (ended == nullptr) return;
      std::lock_guard lock(made->mutex);
      made->by_world_and_group.erase(ended->name());
    });
    return made;
  }();
  return *all;
}

struct Generation {
  uint64_t seed;
  uint64_t state;  ///< a hash of everything that the next numbers depend on
  bool seeded;     ///< by the program, so it must not be changed
};

/// A seed of the process's default generator that the program did not choose: libtorch's initial
/// one, which differs per process, or one taken over from another rank.
std::atomic<uint64_t>& default_seed() {
  static std::atomic<uint64_t> seed{comm::process_seed()};
  return seed;
}
const uint64_t kFirstSeed = default_seed();

/// libtorch's initial seeds have 53 bits. A small one was set by the program before this library
/// was loaded.
bool is_made_up(uint64_t seed) {
  constexpr uint64_t kLargestChosen = 0xFFFFFFFF;
  return (seed == kFirstSeed || seed == default_seed()) && seed > kLargestChosen;
}

Generation generation_of(at::Generator generator) {
  std::lock_guard lock(generator.mutex());
  Generation out{generator.current_seed(), 0, true};
  if (!generator.device().is_cpu()) {
    out.state = generator.get_offset();
    return out;
  }
  const at::Tensor state = generator.get_state();
  const uint8_t* bytes = state.const_data_ptr<uint8_t>();
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (int64_t i = 0; i < state.numel(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3ULL;
  out.state = hash;
  out.seeded = !is_made_up(out.seed);
  return out;
}

uint64_t seed_of(at::Generator generator) {
  std::lock_guard lock(generator.mutex());
  return generator.current_seed();
}

bool is_default(const at::Generator& generator) {
  return comm::default_generator(generator.device()).unsafeGetGeneratorImpl() ==
         generator.unsafeGetGeneratorImpl();
}

/// True between seeding and the first draw.
bool is_newly_seeded(at::Generator generator) {
  std::lock_guard lock(generator.mutex());
  if (!generator.device().is_cpu()) return generator.get_offset() == 0;
  const auto engine = at::check_generator<at::CPUGeneratorImpl>(generator)->engine().data();
  return engine.left_ == 1 && engine.next_ == 0;
}

/// The generator was seeded again, possibly with the agreed seed but a different one on other
/// ranks.
void forget(const at::Generator& generator, const std::string& world) {
  const bool of_default = is_default(generator);
  const uint64_t seed = seed_of(generator);
  Agreements& all = agreements();
  std::lock_guard lock(all.mutex);
  for (auto& [group, agreed] : all.by_world_and_group[world]) {
    if (of_default) {
      agreed.of_defaults.erase(generator.device().type());
    } else {
      agreed.of_others.erase(seed);
    }
  }
}

/// Indexed by rank of the group.
std::vector<Generation> gathered(const comm::Group& group, const Generation& mine) {
  const comm::CallSite site({.op = "check of random seeds"});
  std::vector<at::Tensor> sent = {at::empty({3}, at::kLong)};
  auto* words = sent[0].mutable_data_ptr<int64_t>();
  words[0] = static_cast<int64_t>(mine.seed);
  words[1] = static_cast<int64_t>(mine.state);
  words[2] = mine.seeded ? 1 : 0;
  std::vector<std::vector<at::Tensor>> received(1);
  for (int i = 0; i < group.size(); ++i) received[0].push_back(at::empty({3}, at::kLong));
  group.backend(c10::DeviceType::CPU).allgather(received, sent)->wait();
  std::vector<Generation> out;
  for (const at::Tensor& row : received[0]) {
    const auto* said = row.const_data_ptr<int64_t>();
    out.push_back({static_cast<uint64_t>(said[0]), static_cast<uint64_t>(said[1]), said[2] != 0});
  }
  return out;
}

void take_state_of_first(const comm::Group& group, at::Generator generator) {
  const comm::CallSite site({.op = "agreement on random seeds"});
  std::lock_guard lock(generator.mutex());
  std::vector<at::Tensor> state = {generator.get_state()};
  group.backend(c10::DeviceType::CPU).broadcast(state)->wait();
  generator.set_state(state[0]);
  default_seed() = generator.current_seed();
}

void agree_or_throw(const DeviceMesh& mesh, int axis, const comm::Group& group,
                    const at::Generator& generator) {
  const auto all = gathered(group, generation_of(generator));
  const auto differs = std::ranges::find_if(all, [&](const Generation& other) {
    return other.seed != all[0].seed || other.state != all[0].state;
  });
  if (differs == all.end()) return;
  if (std::ranges::none_of(all, &Generation::seeded)) return take_state_of_first(group, generator);
  const int first = group.ranks()[0];
  const int second = group.ranks()[static_cast<size_t>(differs - all.begin())];
  const std::string how = differs->seed != all[0].seed
                              ? join_text("rank ", first, " has the seed ", all[0].seed, ", rank ",
                                          second, " has ", differs->seed)
                              : join_text("ranks ", first, " and ", second, " have the seed ",
                                          all[0].seed, " and have drawn differently since");
  throw InvalidArgument(join_text(
      "random numbers for a tensor that is not sharded over ", mesh.axis_name(axis), "=",
      mesh.size(axis), ": the generators of its ranks differ, so their copies would differ; ", how,
      ". Seed these ranks with the same number (manual_seed), or shard the tensor "
      "over ",
      mesh.axis_name(axis)));
}

void check_along(const at::Generator& generator, const DeviceMesh& mesh, int axis) {
  const auto group = comm::group_of(mesh, std::array{axis});
  const c10::DeviceType device = generator.device().type();
  const bool of_default = is_default(generator);
  const uint64_t seed = seed_of(generator);
  const std::string& world = comm::world_of(mesh).name();
  Agreements& all = agreements();
  {
    std::lock_guard lock(all.mutex);
    const Agreed& agreed = all.by_world_and_group[world][group->name()];
    const auto known = agreed.of_defaults.find(device);
    if (of_default ? known != agreed.of_defaults.end() && known->second == seed
                   : agreed.of_others.contains(seed)) {
      return;
    }
  }
  agree_or_throw(mesh, axis, *group, generator);
  std::lock_guard lock(all.mutex);
  Agreed& agreed = all.by_world_and_group[world][group->name()];
  if (of_default) {
    agreed.of_defaults[device] = seed_of(generator);
  } else {
    if (agreed.of_others.size() >= kMostSeeds) agreed.of_others.clear();
    agreed.of_others.insert(seed);
  }
}

/// Checks along the axes for which `replicated` returns true.
template <typename Replicated>
void check(const at::Generator& generator, const DeviceMesh& mesh, Replicated replicated) {
  if (mesh.size() == 1 || !mesh.contains_me()) return;
  const comm::RankWorld& world = comm::world_of(mesh);
  if (world.kind() == comm::RankWorld::Kind::fake) return;
  if (is_newly_seeded(generator)) forget(generator, world.name());
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    if (mesh.size(axis) > 1 && replicated(axis)) check_along(generator, mesh, axis);
  }
}

}  // namespace

void check_same_generator(const at::Generator& generator, const Sharding& sharding) {
  check(generator, sharding.mesh(),
        [&](int axis) { return !sharding.placement(axis).is_sharded(); });
}

void check_same_generator(const at::Generator& generator, const DeviceMesh& mesh) {
  check(generator, mesh, [](int) { return true; });
}

}  // namespace tessera::dtensor
