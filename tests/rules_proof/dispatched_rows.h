#pragma once

#include "tessera/rules/registry/registry.h"
#include "tests/rules_proof/dispatched.h"
#include "tests/rules_proof/sample_files.h"

/// Which placements of a sample's operands go through the dispatcher.
namespace tessera::test {

/// The operands of each row for a mesh of one axis; without rows, every dim of all operands.
inline std::vector<OperandPlacements> rows_of(const Rule& rule, const Sample& sample,
                                              const DeviceMesh& mesh) {
  const auto operands = operands_in(sample);
  std::vector<OperandPlacements> out;
  if (rule.rows) {
    const Call call(sample, mesh, [&](size_t, const at::Tensor& t) {
      return sharding_of(t, mesh, {Replicate()});
    });
    for (const auto& row : rule.rows(call.get(), 0)) {
      if (rule.in_place && row.operands[0] != row.results[0]) continue;
      out.push_back(by_operand(row.operands));
    }
    return out;
  }
  for (int64_t dim = 0; dim < 4; ++dim) {
    OperandPlacements shards;
    bool any = false;
    for (const auto& t : operands) {
      const bool has = t.defined() && dim < t.dim();
      any |= has;
      shards.push_back({has ? Shard(static_cast<int>(dim)) : Replicate()});
    }
    if (any) out.push_back(std::move(shards));
  }
  return out;
}

inline OperandPlacements drawn(const Sample& sample, const DeviceMesh& mesh, std::mt19937& rng) {
  OperandPlacements out;
  for (const auto& t : operands_in(sample)) {
    out.emplace_back();
    for (int axis = 0; axis < mesh.ndim(); ++axis) {
      const int64_t dims = t.defined() ? t.dim() : 0;
      const auto pick = static_cast<int64_t>(rng() % static_cast<uint64_t>(dims + 1));
      out.back().push_back(pick == dims ? Replicate() : Shard(static_cast<int>(pick)));
    }
  }
  return out;
}

/// Proves a sample: each row on one axis, drawn placements on two and three. False if the plain op
/// does not run, which is an error only where it must.
inline bool prove_dispatch(const std::string& line, unsigned seed, bool must_work, Tally& tally) {
  at::manual_seed(seed);
  std::mt19937 rng(seed);
  const std::string op = line.substr(0, line.find(' '));
  const Rule* rule = rules::find_rule(op);
  std::optional<Sample> sample;
  std::optional<Expectation> expected;
  try {
    sample = parse_sample(line);
    expected = draws(op) ? expectation_of_draws(*sample) : expectation(*sample);
  } catch (const std::exception& e) {
    if (must_work) tally.failures.push_back(line + ": the plain op fails: " + e.what());
    return false;
  }
  const DeviceMesh axis({{"x", 2 + static_cast<int>(rng() % 3)}});
  const auto rows = rows_of(*rule, *sample, axis);
  tally.rows += static_cast<int>(rows.size());
  prove_calls(*sample, *expected, axis, rows, tally);
  for (const char* text : {"x=2,y=2", "x=2,y=1,z=2"}) {
    const DeviceMesh mesh = DeviceMesh::parse(text);
    prove_calls(*sample, *expected, mesh, {drawn(*sample, mesh, rng)}, tally);
  }
  return true;
}

}  // namespace tessera::test
