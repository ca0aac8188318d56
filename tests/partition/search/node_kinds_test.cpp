#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/partition/graph/einsum_rule.h"
#include "tessera/partition/search/propagate.h"
#include "tests/partition/programs.h"
#include "tests/support_pure/expect_error.h"

/// Ops that need more than a line of the rules' tables: einsum, and those that draw numbers.
namespace tessera::partition {
namespace node_kinds_test {

using namespace test;  // NOLINT
using tessera::test::expect_error;

struct Einsum {
  std::string equation;
  std::vector<std::vector<int64_t>> shapes;
  std::string line;
  double flops;
};

TEST(Einsum, IsALineOfTheNotation) {
  const std::vector<Einsum> cases = {
      {"ij,jk->ik", {{2, 3}, {3, 4}}, "ab, bc -> ac ; linear 0 ; linear 1", 48},
      {"ij, jk", {{2, 3}, {3, 4}}, "ab, bc -> ac ; linear 0 ; linear 1", 48},
      {"btw,ewh->beth", {{2, 3, 4}, {5, 4, 6}}, "abc, dce -> adbe ; linear 0 ; linear 1", 1440},
      {"...ij,...jk->...ik", {{7, 2, 3}, {3, 4}}, "*ab, *bc -> *ac ; linear 0 ; linear 1", 336},
      {"Ba,Bb->ab", {{2, 3}, {2, 4}}, "ab, ac -> bc ; linear 0 ; linear 1", 48},
      {"ba,Aa", {{2, 3}, {4, 3}}, "ab, cb -> ca ; linear 0 ; linear 1", 48},
      {"ii->i", {{3, 3}}, "AA -> A ; linear 0", 6},
      {"i,i->", {{3}, {3}}, "a, a -> . ; linear 0 ; linear 1", 6},
      {"ij->ji", {{2, 3}}, "ab -> ba ; linear 0", 12},
      {"i,j,k->ijk", {{2}, {3}, {4}}, "a, b, c -> abc ; linear 0 ; linear 1 ; linear 2", 48},
      {"ij->ik", {{2, 3}}, "", 12},  // einsum itself refuses the rest
      {"i->i", {{2}, {3}}, "", 0},
      {"i-j", {{2}, {3}}, "", 0},
  };
  const DeviceMesh mesh = DeviceMesh::parse("tp=2");
  for (const auto& c : cases) {
    std::vector<Sharding> tensors;
    for (const auto& shape : c.shapes) tensors.emplace_back(mesh, std::vector{Replicate()}, shape);
    const std::vector<rules::NamedArg> args = {{"equation", c.equation}, {"tensors", tensors}};
    const rules::OpCall call{"aten::einsum", args, mesh, {}};
    EXPECT_EQ(einsum_line(call), c.line) << c.equation;
    EXPECT_EQ(einsum_flops(call), c.flops) << c.equation;
    const bool shards = std::ranges::any_of(einsum_rule().rows(call, 0), [](const rules::Row& row) {
      return row.operands[0].is_sharded();
    });
    EXPECT_EQ(shards, !c.line.empty() && c.equation != "ii->i") << c.equation;
  }
}

TEST(RandomOps, AreRefusedByName) {
  auto p = load("gpt_raw");
  auto& node = p.graph.nodes.back();
  node.target = "torch.ops.aten.bernoulli.default";
  const auto attempt = [&](const char* mesh) { propagate(p, DeviceMesh::parse(mesh), Plan(), {}); };
  expect_error<NotSupported>([&] { attempt("tp=2"); },
                             {*node.name, "aten.bernoulli", "draws random numbers", "eval()"});
  node.target = "torch.ops.aten.dropout.default";  // of an argument `train` that is not there
  attempt("tp=2");
  node.inputs.push_back({"train", {program::ArgKind::boolean, true}, {}});
  expect_error<NotSupported>([&] { attempt("tp=2"); }, {"aten.dropout"});
}

}  // namespace node_kinds_test
}  // namespace tessera::partition
