#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/mesh/device_mesh.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/random_shardings.h"

namespace tessera {
namespace derive_test {

using test::expect_error;
using test::for_each_seed;
using test::Rng;

using Names = std::vector<std::string>;

Names names_of(const DeviceMesh& mesh) {
  Names names;
  for (const auto& axis : mesh.axes()) names.push_back(axis.name);
  return names;
}

/// A random mesh over any ranks, seen from nowhere, from one of its ranks or from outside.
DeviceMesh random_view(Rng& rng, int max_ranks = 60) {
  const auto mesh = test::with_random_ranks(rng, test::random_mesh(rng, 4, max_ranks));
  if (rng.chance(25)) return mesh;
  if (rng.chance(15)) return mesh.with_own_rank(1000);
  return mesh.with_own_rank(mesh.rank_at(test::random_coordinate(rng, mesh)));
}

/// Where submeshes run through: my place, or the corner.
Coordinate anchor_of(const DeviceMesh& mesh) {
  return mesh.my_coordinate().value_or(Coordinate(static_cast<size_t>(mesh.ndim()), 0));
}

/// Some axes, at least one, in any order.
Names random_names(Rng& rng, const DeviceMesh& mesh) {
  Names names = names_of(mesh);
  rng.shuffle(names);
  names.resize(static_cast<size_t>(rng.between(1, mesh.ndim())));
  return names;
}

TEST(Submesh, RunsThroughMyCoordinate) {
  const DeviceMesh root = DeviceMesh::parse("pp=2,dp=2,tp=2").with_own_rank(6);
  EXPECT_EQ(root["tp"].to_text(), "tp=2@6,7");
  EXPECT_EQ(root["dp"].to_text(), "dp=2@4,6");
  EXPECT_EQ(root["pp"].to_text(), "pp=2@2,6");
  EXPECT_EQ((root[{"dp", "tp"}].to_text()), "dp=2,tp=2@4-7");
  EXPECT_EQ((root[{"tp", "pp"}].to_text()), "tp=2,pp=2@2,6,3,7");
  EXPECT_EQ((root[{"tp", "dp", "pp"}].my_coordinate()), (Coordinate{0, 1, 1}));
}

TEST(Submesh, RunsThroughTheCornerWhereIAmNowhereOrOutside) {
  const DeviceMesh root = DeviceMesh::parse("dp=2,tp=2@5,6,7,8");
  EXPECT_EQ(root["tp"].to_text(), "tp=2@5,6");
  EXPECT_EQ(root.with_own_rank(0)["dp"].to_text(), "dp=2@5,7");
  EXPECT_EQ(root.with_own_rank(0)["dp"].my_rank(), 0);
}

TEST(Submesh, OfASubmeshIsASubmesh) {
  const DeviceMesh root = DeviceMesh::parse("pp=2,dp=3,tp=2").with_own_rank(9);
  EXPECT_EQ((root[{"dp", "tp"}]["dp"]), root["dp"]);
  EXPECT_EQ((root[{"tp", "dp"}][{"dp", "tp"}]), (root[{"dp", "tp"}]));
  EXPECT_EQ((root[{"pp", "dp", "tp"}]), root);
}

TEST(Submesh, HoldsTheRanksThatDifferOnItsAxesOnly) {
  for_each_seed(300, [](Rng& rng) {
    const DeviceMesh root = random_view(rng);
    const Names names = random_names(rng, root);
    const DeviceMesh sub = root.submesh(names);
    ASSERT_EQ(names_of(sub), names);
    EXPECT_EQ(sub.my_rank(), root.my_rank());
    EXPECT_EQ(sub.contains_me(), root.contains_me());
    for (const auto& coordinate : test::all_coordinates(sub)) {
      Coordinate at = anchor_of(root);
      for (size_t i = 0; i < names.size(); ++i) {
        at[static_cast<size_t>(root.axis(names[i]))] = coordinate[i];
      }
      EXPECT_EQ(sub.rank_at(coordinate), root.rank_at(at));
    }
  });
}

TEST(Submesh, AllOfThemPartitionTheMeshAndMineIsOne) {
  const DeviceMesh root = DeviceMesh::parse("dp=2,tp=3").with_own_rank(4);
  const auto rows = root.all_submeshes(Names{"tp"});
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].to_text(), "tp=3");
  EXPECT_EQ(rows[1].to_text(), "tp=3@3-5");
  EXPECT_EQ(rows[1], root["tp"]);
  EXPECT_FALSE(rows[0].contains_me());
  EXPECT_EQ(root.all_submeshes(Names{"tp", "dp"}).size(), 1U);

  for_each_seed(100, [](Rng& rng) {
    const DeviceMesh mesh = random_view(rng);
    const Names names = random_names(rng, mesh);
    const auto all = mesh.all_submeshes(names);
    std::vector<int> seen;
    for (const auto& sub : all) {
      seen.insert(seen.end(), sub.ranks().begin(), sub.ranks().end());
      EXPECT_EQ(sub.my_rank(), mesh.my_rank());
    }
    std::ranges::sort(seen);
    std::vector<int> ranks(mesh.ranks().begin(), mesh.ranks().end());
    std::ranges::sort(ranks);
    EXPECT_EQ(seen, ranks);
    EXPECT_EQ(std::ranges::count(all, mesh.submesh(names)), 1);
  });
}

TEST(Submesh, SaysWhatIsWrong) {
  const DeviceMesh root = DeviceMesh::parse("dp=2,tp=4");
  expect_error<InvalidArgument>([&] { root["pp"]; }, {"no axis \"pp\"", "dp=2,tp=4"});
  expect_error<InvalidArgument>([&] { root[{"tp", "tp"}]; }, {"named twice in tp,tp"});
  expect_error<InvalidArgument>([&] { root.submesh(Names{}); }, {"submesh", "no axis was named"});
  expect_error<InvalidArgument>([&] { root.all_submeshes(Names{}); }, {"no axis was named"});
  expect_error<InvalidArgument>([&] { root.all_submeshes(Names{"pp"}); }, {"no axis \"pp\""});
}

TEST(Flatten, JoinsAxesInTheOrderNamed) {
  const DeviceMesh root = DeviceMesh::parse("dp=2,tp=4").with_own_rank(6);
  EXPECT_EQ(root.flatten({"dp", "tp"}, "world").to_text(), "world=8");
  EXPECT_EQ(root.flatten("world"), root.flatten({"dp", "tp"}, "world"));
  EXPECT_EQ(root.flatten({"tp", "dp"}, "w").to_text(), "w=8@0,4,1,5,2,6,3,7");
  EXPECT_EQ(root.flatten("world").my_coordinate(), Coordinate{6});
  EXPECT_EQ(root.flatten({"tp"}, "model").to_text(), "dp=2,model=4");
}

TEST(Flatten, PutsTheNewAxisInThePlaceOfTheFirstNamed) {
  const DeviceMesh root = DeviceMesh::parse("a=2,b=3,c=2");
  EXPECT_EQ(root.flatten({"a", "c"}, "ac").to_text(), "ac=4,b=3@0,2,4,1,3,5,6,8,10,7,9,11");
  EXPECT_EQ(root.flatten({"c", "a"}, "ca").to_text(), "b=3,ca=4@0,6,1,7,2,8,3,9,4,10,5,11");
}

TEST(Flatten, CountsThroughItsAxesWithTheLastOneFastest) {
  for_each_seed(300, [](Rng& rng) {
    const DeviceMesh root = random_view(rng);
    const Names names = random_names(rng, root);
    const DeviceMesh flat = root.flatten(names, "flat");
    ASSERT_EQ(flat.size(), root.size());
    for (const auto& coordinate : test::all_coordinates(flat)) {
      Coordinate at(static_cast<size_t>(root.ndim()), 0);
      for (int axis = 0; axis < flat.ndim(); ++axis) {
        int mine = coordinate[static_cast<size_t>(axis)];
        if (flat.axis_name(axis) != "flat") {
          at[static_cast<size_t>(root.axis(flat.axis_name(axis)))] = mine;
          continue;
        }
        for (size_t i = names.size(); i-- > 0;) {
          const int from = root.axis(names[i]);
          at[static_cast<size_t>(from)] = mine % root.size(from);
          mine /= root.size(from);
        }
      }
      EXPECT_EQ(flat.rank_at(coordinate), root.rank_at(at));
    }
  });
}

TEST(Flatten, SaysWhatIsWrong) {
  const DeviceMesh root = DeviceMesh::parse("dp=2,tp=4,pp=1");
  expect_error<InvalidArgument>([&] { root.flatten({"dp", "xx"}, "w"); }, {"no axis \"xx\""});
  expect_error<InvalidArgument>([&] { root.flatten({"dp", "dp"}, "w"); }, {"named twice in dp,dp"});
  expect_error<InvalidArgument>([&] { root.flatten(Names{}, "w"); }, {"no axis was named"});
  expect_error<InvalidArgument>(
      [&] {
        root.flatten({"dp", "tp"}, "pp");
      },
      {"two mesh axes are called pp"});
  expect_error<InvalidArgument>([&] { root.flatten({"dp"}, "a b"); }, {"\"a b\" cannot name"});
}

TEST(Unflatten, SplitsAnAxisIntoParts) {
  const DeviceMesh root = DeviceMesh::parse("world=12,pp=2").with_own_rank(9);
  const DeviceMesh split = root.unflatten("world", {{"dp", 3}, {"tp", 4}});
  EXPECT_EQ(split.to_text(), "dp=3,tp=4,pp=2");
  EXPECT_EQ(split.my_coordinate(), (Coordinate{1, 0, 1}));
  EXPECT_EQ(split["tp"].to_text(), "tp=4@9,11,13,15");
  EXPECT_EQ(root.unflatten("pp", {{"x", 1}, {"y", 2}, {"z", 1}}).to_text(), "world=12,x=1,y=2,z=1");
}

TEST(Unflatten, TakesAnyPartsThatHoldTheAxis) {
  // 2x3 ranks counted as 6 are split as 3x2, though no axis of the root is: also counted tp first.
  const DeviceMesh root = DeviceMesh::parse("dp=2,tp=3");
  EXPECT_EQ(root.flatten("w").unflatten("w", {{"a", 3}, {"b", 2}}).to_text(), "a=3,b=2");
  const DeviceMesh odd = root.flatten({"tp", "dp"}, "w").unflatten("w", {{"a", 2}, {"b", 3}});
  EXPECT_EQ(odd.to_text(), "a=2,b=3@0,3,1,4,2,5");
  EXPECT_EQ(odd["b"].to_text(), "b=3@0,3,1");
}

TEST(Unflatten, UndoesFlatten) {
  for_each_seed(300, [](Rng& rng) {
    const DeviceMesh root = random_view(rng);
    const Names names = random_names(rng, root);
    std::vector<MeshAxis> parts;
    for (const auto& name : names) parts.push_back({name, root.size(root.axis(name))});
    const DeviceMesh back = root.flatten(names, "flat").unflatten("flat", parts);
    // The axes come back, side by side: the same mesh with its axes in another order.
    EXPECT_EQ(back, root.submesh(names_of(back)));
    EXPECT_EQ(back.submesh(names_of(root)), root);
  });
}

TEST(Unflatten, KeepsTheRowMajorOrderOfRanks) {
  for_each_seed(300, [](Rng& rng) {
    const DeviceMesh root = random_view(rng);
    const DeviceMesh mesh = rng.chance(50) ? root : root.flatten(random_names(rng, root), "flat");
    const int axis = rng.int_between(0, mesh.ndim() - 1);
    std::vector<MeshAxis> parts;
    int rest = mesh.size(axis);
    for (int i = 0; rest > 1 || i == 0; ++i) {
      int size = rng.int_between(1, rest);
      while (rest % size != 0) --size;
      parts.push_back({"part" + std::to_string(i), size});
      rest /= size;
    }
    const DeviceMesh split = mesh.unflatten(mesh.axis_name(axis), parts);
    EXPECT_TRUE(std::ranges::equal(split.ranks(), mesh.ranks()));
    EXPECT_EQ(split.ndim(), mesh.ndim() + std::ssize(parts) - 1);
    // Its submeshes are right too, so the lineage is.
    const Names names = random_names(rng, split);
    const DeviceMesh sub = split.submesh(names);
    for (const auto& coordinate : test::all_coordinates(sub)) {
      Coordinate at = anchor_of(split);
      for (size_t i = 0; i < names.size(); ++i) {
        at[static_cast<size_t>(split.axis(names[i]))] = coordinate[i];
      }
      EXPECT_EQ(sub.rank_at(coordinate), split.rank_at(at));
    }
  });
}

TEST(Unflatten, SaysWhatIsWrong) {
  const DeviceMesh root = DeviceMesh::parse("dp=6,tp=2");
  const auto bad = [&](std::vector<MeshAxis> into, std::initializer_list<std::string_view> parts) {
    expect_error<InvalidArgument>([&] { root.unflatten("dp", into); }, parts);
  };
  bad({}, {"axis dp", "no parts"});
  bad({{"a", 2}, {"b", 2}}, {"the parts hold 4 ranks, the axis 6"});
  bad({{"a", 0}, {"b", 2}}, {"part a has size 0"});
  bad({{"a", 6}, {"tp", 1}}, {"two mesh axes are called tp"});
  bad({{"a", INT32_MAX}, {"b", INT32_MAX}, {"c", INT32_MAX}}, {"the axis 6"});
  expect_error<InvalidArgument>([&] { root.unflatten("pp", {{"a", 2}}); }, {"no axis \"pp\""});
}

TEST(Concatenate, PutsSubmeshesOfOneRootSideBySide) {
  const DeviceMesh root = DeviceMesh::parse("pp=2,dp=2,tp=2").with_own_rank(5);
  EXPECT_EQ(DeviceMesh::concatenate({root["dp"], root["tp"]}), (root[{"dp", "tp"}]));
  EXPECT_EQ(DeviceMesh::concatenate({root["tp"], root["pp"]}), (root[{"tp", "pp"}]));
  EXPECT_EQ((DeviceMesh::concatenate({root[{"tp", "pp"}], root["dp"]})),
            (root[{"tp", "pp", "dp"}]));
  EXPECT_EQ(DeviceMesh::concatenate({root["dp"]}), root["dp"]);
}

TEST(Concatenate, OfAnyPartsIsTheSubmeshOfTheirAxes) {
  for_each_seed(300, [](Rng& rng) {
    const DeviceMesh root = random_view(rng);
    const Names names = random_names(rng, root);
    std::vector<DeviceMesh> parts;
    for (size_t i = 0; i < names.size();) {
      const auto end =
          static_cast<size_t>(rng.between(static_cast<int64_t>(i) + 1, std::ssize(names)));
      parts.push_back(root.submesh(std::span(names).subspan(i, end - i)));
      i = end;
    }
    EXPECT_EQ(DeviceMesh::concatenate(parts), root.submesh(names));
  });
}

TEST(Concatenate, TakesFlattenedAndUnflattenedAxes) {
  const DeviceMesh root = DeviceMesh::parse("pp=2,dp=4,tp=2").with_own_rank(11);
  const DeviceMesh flat = root.flatten({"pp", "tp"}, "pt");
  EXPECT_EQ(DeviceMesh::concatenate({root["dp"], flat["pt"]}), (flat[{"dp", "pt"}]));
  const DeviceMesh split = root.unflatten("dp", {{"outer", 2}, {"inner", 2}});
  EXPECT_EQ(DeviceMesh::concatenate({split["inner"], root["tp"], split["outer"]}),
            (split[{"inner", "tp", "outer"}]));
}

TEST(Concatenate, KnowsTheRootOfPartsThatGoAcrossItsAxes) {
  // 2x3 ranks of dp and tp counted as 6 and split as 3x2: strides say that too.
  const DeviceMesh root = DeviceMesh::parse("pp=2,dp=2,tp=3").with_own_rank(10);
  const DeviceMesh split = root.flatten({"dp", "tp"}, "w").unflatten("w", {{"a", 3}, {"b", 2}});
  EXPECT_EQ(DeviceMesh::concatenate({split["b"], root["pp"]}), (split[{"b", "pp"}]));
  // Counted tp first they do not, so the parts are a root of their own.
  const DeviceMesh odd = root.flatten({"tp", "dp"}, "w").unflatten("w", {{"a", 2}, {"b", 3}});
  EXPECT_EQ(DeviceMesh::concatenate({odd["b"], odd["pp"]}), (odd[{"b", "pp"}]));
  expect_error<InvalidArgument>(
      [&] {
        DeviceMesh::concatenate({odd["b"], root["pp"]});
      },
      {"not parts of one mesh"});
}

TEST(Concatenate, ForgetsNeitherSeenFromNorTheWayAPartWasMade) {
  const DeviceMesh root = DeviceMesh::parse("dp=2,tp=2");
  const DeviceMesh mine = root.with_own_rank(0);
  // On paper the submesh runs through the corner, which is rank 0.
  EXPECT_EQ(DeviceMesh::concatenate({root["dp"].with_own_rank(0), mine["tp"]}), mine);
  EXPECT_EQ(DeviceMesh::concatenate({mine.all_submeshes(Names{"dp"})[0], mine["tp"]}), mine);
}

TEST(Concatenate, SaysWhatIsWrong) {
  const DeviceMesh root = DeviceMesh::parse("pp=2,dp=2,tp=2").with_own_rank(5);
  const auto bad = [](std::vector<DeviceMesh> parts, std::initializer_list<std::string_view> says) {
    expect_error<InvalidArgument>([&] { DeviceMesh::concatenate(parts); }, says);
  };
  bad({}, {"no meshes were given"});
  bad({root["dp"], DeviceMesh::parse("tp=2,xx=4").with_own_rank(5)["xx"]},
      {"not parts of one mesh"});
  bad({root["dp"], DeviceMesh::parse("tp=2")}, {"tp=2", "dp=2", "not parts of one mesh"});
  bad({root["dp"], root.with_own_rank(4)["tp"]},
      {"not parts of one mesh with one rank as their own"});
  bad({root["dp"], root.all_submeshes(Names{"tp"})[0]}, {"do not run through one rank"});
  bad({root["dp"], root["dp"]}, {"overlap", "may appear once"});
  bad({root["dp"], root.flatten({"dp", "tp"}, "dt")["dt"]}, {"overlap"});
  bad({root.flatten({"dp", "tp"}, "dt")["dt"], root["tp"]}, {"overlap"});
  bad({root, root, root}, {"overlap"});
  const DeviceMesh thin = DeviceMesh::parse("dp=1,tp=2");
  bad({thin["dp"], thin["dp"]}, {"two mesh axes are called dp"});
}

}  // namespace derive_test
}  // namespace tessera
