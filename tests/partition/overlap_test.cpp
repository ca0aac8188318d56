// Where collectives stand in the programs of ranks, for every small model.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/errors.h"
#include "tessera/partition/rewrite/rewrite.h"
#include "tessera/partition/search/propagate.h"
#include "tests/partition/programs.h"
#include "tests/support_pure/property.h"

namespace tessera::partition {
namespace overlap_test {

using program::Graph;
using program::Node;
using program::ValueId;

bool is_op(const Node& node, std::string_view name) {
  return node.target.starts_with("torch.ops._c10d_functional.") &&
         node.target.find(name) != std::string::npos;
}
bool is_wait(const Node& node) { return is_op(node, "wait_tensor"); }
bool is_collective(const Node& node) { return is_op(node, "") && !is_wait(node); }

std::vector<ValueId> inputs_of(const Node& node) {
  std::vector<ValueId> out;
  for (const auto& input : node.inputs) {
    program::each_value(input.arg, [&](ValueId id) { out.push_back(id); });
  }
  return out;
}

ValueId result_of(const Node& node) {
  ValueId out{};
  for (const auto& output : node.outputs) {
    program::each_value(output, [&](ValueId id) { out = id; });
  }
  return out;
}

/// A rank's program, and which of its nodes are of the whole one; the others were inserted.
struct Local {
  Graph graph;
  std::vector<bool> given;
  std::map<uint32_t, size_t> maker;  // by value
  std::map<uint32_t, int> readers;

  Local(const program::ExportedProgram& whole, const Assignment& assignment)
      : graph(program_of_rank(whole, assignment, 0).graph) {
    std::set<std::string> names;
    for (const auto& node : whole.graph.nodes) names.insert(node.name.value_or(""));
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      given.push_back(names.contains(graph.nodes[i].name.value_or("")));
      for (const auto& output : graph.nodes[i].outputs) {
        program::each_value(output, [&](ValueId id) { maker[id.index] = i; });
      }
      for (const ValueId id : inputs_of(graph.nodes[i])) ++readers[id.index];
    }
    for (const auto& output : graph.outputs) {
      program::each_value(output, [&](ValueId id) { ++readers[id.index]; });
    }
  }

  /// The given nodes and waits that inserted nodes before it take their inputs from; SIZE_MAX for
  /// inputs of the program.
  void sources(size_t node, std::set<size_t>& out) const {
    for (const ValueId id : inputs_of(graph.nodes[node])) {
      const auto found = maker.find(id.index);
      const size_t from = found == maker.end() ? SIZE_MAX : found->second;
      if (from != SIZE_MAX && !given[from] && !is_wait(graph.nodes[from])) {
        sources(from, out);
      } else {
        out.insert(from);
      }
    }
  }

  /// The first given node from `i` on, or the number of nodes.
  size_t next_given(size_t i) const {
    while (i < given.size() && !given[i]) ++i;
    return i;
  }
};

/// A wait comes right before the node that needs its result.
void expect_late_waits(const Local& local) {
  for (size_t i = 0; i < local.graph.nodes.size(); ++i) {
    if (!is_wait(local.graph.nodes[i])) continue;
    const size_t reader = local.next_given(i);
    if (reader == local.given.size()) continue;  // of an output
    std::set<uint32_t> ready = {result_of(local.graph.nodes[i]).index};
    for (size_t k = i + 1; k < reader; ++k) {
      const auto inputs = inputs_of(local.graph.nodes[k]);
      const bool uses =
          std::ranges::any_of(inputs, [&](ValueId id) { return ready.contains(id.index); });
      if (uses) ready.insert(result_of(local.graph.nodes[k]).index);
    }
    const auto inputs = inputs_of(local.graph.nodes[reader]);
    EXPECT_TRUE(std::ranges::any_of(inputs, [&](ValueId id) { return ready.contains(id.index); }))
        << *local.graph.nodes[i].name << " before " << *local.graph.nodes[reader].name;
  }
}

/// A collective of what a node made starts before any other node of the program.
int expect_early_starts(const Local& local) {
  int overlapping = 0;
  for (size_t i = 0; i < local.graph.nodes.size(); ++i) {
    if (!is_collective(local.graph.nodes[i])) continue;
    std::set<size_t> from;
    local.sources(i, from);
    from.erase(SIZE_MAX);
    if (from.empty()) continue;  // an input of the program
    const size_t last = *from.rbegin();
    if (!is_wait(local.graph.nodes[last])) {
      EXPECT_EQ(local.next_given(last + 1), local.next_given(i))
          << *local.graph.nodes[i].name << " after " << *local.graph.nodes[last].name;
    }
    size_t wait = i + 1;
    while (!is_wait(local.graph.nodes[wait]) ||
           inputs_of(local.graph.nodes[wait])[0] != result_of(local.graph.nodes[i])) {
      ++wait;
    }
    overlapping += local.next_given(i) < wait ? 1 : 0;
  }
  return overlapping;
}

/// What is scattered has a reader besides the gather of it.
void expect_merged(const Local& local) {
  for (size_t i = 0; i < local.graph.nodes.size(); ++i) {
    if (!is_op(local.graph.nodes[i], "all_gather")) continue;
    std::set<size_t> from;
    local.sources(i, from);
    for (const size_t wait : from) {
      if (wait == SIZE_MAX || !is_wait(local.graph.nodes[wait])) continue;
      const Node& made =
          local.graph.nodes[local.maker.at(inputs_of(local.graph.nodes[wait])[0].index)];
      if (!is_op(made, "reduce_scatter")) continue;
      EXPECT_GT(local.readers.at(result_of(local.graph.nodes[wait]).index), 1)
          << *made.name << " and " << *local.graph.nodes[i].name << " are one all_reduce";
    }
  }
}

std::string plan_of_model(const std::string& model) {
  return tessera::test::contents_of("tests/partition/plans/" + model + ".json");
}

TEST(Overlap, CollectivesStartEarlyAndAreAwaitedLate) {
  int overlapping = 0;
  int number = 0;
  for (const char* model : {"mlp", "gpt", "llama", "bert", "vit", "moe"}) {
    for (const char* form : {"_raw", "_core", "_raw_dynamic"}) {
      SCOPED_TRACE(join_text(model, form));
      const auto whole = test::load(join_text(model, form));
      for (const std::string mesh : {"tp=2", "dp=2,tp=2"}) {
        if (mesh != "tp=2" && std::string_view(model) == "moe") continue;  // a plan for one axis
        if (!tessera::test::in_sample(number++)) continue;
        const auto plan = Plan::parse(plan_of_model(model), "plan");
        const Assignment assignment = propagate(whole, DeviceMesh::parse(mesh), plan);
        const Local local(whole, assignment);
        expect_late_waits(local);
        overlapping += expect_early_starts(local);
        expect_merged(local);
      }
    }
  }
  EXPECT_GT(overlapping, 0);
}

TEST(Overlap, AutoPlansMergeReduceAndGather) {
  for (const char* model : {"gpt", "llama", "moe"}) {
    SCOPED_TRACE(model);
    const auto whole = test::load(join_text(model, "_raw"));
    PropagateOptions options;
    for (const int64_t limit : {40'000, 80'000, 10'000'000}) {
      options.weight_limit = limit;
      Assignment assignment;
      try {
        assignment = propagate(whole, DeviceMesh::parse("tp=4"),
                               Plan::parse(R"({"rest": "auto"})", "plan"), options);
      } catch (const InvalidArgument&) {
        continue;  // it does not fit even with everything sharded
      }
      expect_merged(Local(whole, assignment));
    }
  }
}

}  // namespace overlap_test
}  // namespace tessera::partition
