#pragma once

#include <string>

#include "tessera/base/text.h"
#include "tessera/partition/graph/assignment.h"
#include "tessera/plan/plan.h"
#include "tessera/program/archive.h"
#include "tests/support_pure/temp_dir.h"

/// The exported models of tests/partition/data and short ways to ask about an assignment.
namespace tessera::partition::test {

inline const std::vector<std::string>& forms() {
  static const std::vector<std::string> all = {"raw",         "infer",         "core",
                                               "raw_dynamic", "infer_dynamic", "core_dynamic"};
  return all;
}

inline program::ExportedProgram load(const std::string& name) {
  return program::Archive::open("tests/partition/data/" + name + ".pt2")->read_program();
}

/// A program of which only the description is there, not the weights: models/model.json.
inline program::ExportedProgram load_description(const std::filesystem::path& path) {
  const std::string model = tessera::test::contents_of(path);
  return program::parse_program({model, R"({"config": {}})", R"({"config": {}})"}, path.string());
}

/// How a parameter is placed: "S0".
inline std::string weight(const program::ExportedProgram& program, const Assignment& assignment,
                          const std::string& name) {
  const auto sharding = sharding_of_weight(program, assignment, name);
  return sharding ? sharding->placements_text() : "none";
}

/// How many steps of a kind there are.
inline int count(const Assignment& assignment, plan::Move move) {
  int out = 0;
  for (const auto& moved : assignment.redistributions) {
    const auto machine = cost::default_machine(assignment.mesh.device());
    for (const auto& step : plan::make_plan(moved.from, moved.to, machine).steps)
      out += step.move == move ? 1 : 0;
  }
  return out;
}

/// For messages of tests.
inline std::string text(const program::ExportedProgram& p, const Assignment& a) {
  std::string out;
  for (size_t n = 0; n < a.nodes.size(); ++n) {
    out += join_text(p.graph.nodes[n].name.value_or("?"), "  ", p.graph.nodes[n].target, "  ",
                     a.nodes[n].row, "  ", a.nodes[n].why_whole, "\n");
  }
  for (const auto& m : a.redistributions) {
    out += join_text("move ", p.graph.value(m.value).name, " ", m.from.placements_text(), " -> ",
                     m.to.placements_text(), " for ", m.first_reader, "\n");
  }
  return out + join_text("compute ", a.totals.compute_seconds, " s, communication ",
                         a.totals.comm_seconds, " s, ", a.totals.collectives, " collectives\n");
}

}  // namespace tessera::partition::test
