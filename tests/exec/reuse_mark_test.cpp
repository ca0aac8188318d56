// Marks count what was left out on a mesh of the same text, whichever objects the ranks have of it.
#include "tessera/exec/reuse_mark.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tessera/comm/fake.h"
#include "tests/support_pure/property.h"

namespace tessera::exec {
namespace reuse_mark_test {

using test::Rng;

/// The gather of a tensor of 8 elements over a new mesh of the only axis `name`.
struct Gather {
  Gather(const std::shared_ptr<comm::RankWorld>& world, const std::string& name)
      : mesh(DeviceMesh::parse(name + "=2").in_world(world)),
        from(mesh, {Shard(0)}, {8}),
        to(from.replicated()) {}

  uint64_t mark() const { return take_reuse_mark(from, to); }

  DeviceMesh mesh;
  Sharding from, to;
};

std::string name_of(int64_t number) { return "m" + std::to_string(number); }

/// What a mark is after so many were left out.
uint64_t mark_of(uint64_t left_out) { return uint64_t{1} << 32 | (1 + left_out); }

TEST(ReuseMark, CountsWhatWasLeftOutSinceThePreviousOne) {
  const auto world = comm::fake_world(0, 2);
  const Gather a(world, "a"), b(world, "b");
  for (const uint64_t count : {0, 3, 1}) {
    for (uint64_t i = 0; i < count; ++i) count_reuse(a.from, a.to);
    EXPECT_EQ(b.mark(), mark_of(0));
    EXPECT_EQ(a.mark(), mark_of(count));
  }
}

TEST(ReuseMark, AMeshAtAnAddressOfAnotherInheritsNoCount) {
  const auto world = comm::fake_world(0, 2);
  std::set<const void*> addresses;
  for (int i = 0; i < 50; ++i) {
    const Gather gather(world, name_of(i));
    addresses.insert(gather.mesh.id());
    EXPECT_EQ(gather.mark(), mark_of(0)) << gather.mesh.to_text();
    count_reuse(gather.from, gather.to);  // and no mark is taken before the mesh is freed
  }
  if (addresses.size() == 50) GTEST_SKIP() << "no address came back, as under sanitizers";
}

/// The marks of one rank, which runs the program of `seed` and holds its meshes as `holds` decides.
std::vector<uint64_t> marks_of_rank(uint64_t seed, Rng& holds) {
  const auto world = comm::fake_world(0, 2);
  Rng program(seed);
  std::vector<Gather> held;
  std::vector<uint64_t> marks;
  for (int i = 0; i < 100; ++i) {
    held.emplace_back(world, name_of(program.between(0, 5)));
    if (program.chance(60)) count_reuse(held.back().from, held.back().to);
    if (program.chance(40)) marks.push_back(held.back().mark());
    if (holds.chance(50)) held.clear();
  }
  return marks;
}

TEST(ReuseMark, RanksThatFreeTheirMeshesAtDifferentTimesHaveTheSame) {
  test::for_each_seed(20, [](Rng& rng) {
    const uint64_t seed = rng.next();
    EXPECT_EQ(marks_of_rank(seed, rng), marks_of_rank(seed, rng));
  });
}

}  // namespace reuse_mark_test
}  // namespace tessera::exec
