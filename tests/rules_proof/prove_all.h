#pragma once

#include <gtest/gtest.h>
#include <torch/version.h>

#include "tessera/rules/registry/registry.h"
#include "tests/rules_proof/prove.h"

/// Proves every row that a rule gives for a sample: on 1 to 4 ranks, with operands replicated,
/// strided and ragged; and what `choose` makes of random placements on meshes of two axes.
namespace tessera::test {

struct Tally {
  int rows = 0;
  int choices = 0;
  std::vector<std::string> failures;
};

inline std::vector<std::vector<Placement>> by_operand(const std::vector<Placement>& row) {
  std::vector<std::vector<Placement>> out;
  for (const auto& p : row) out.push_back({p});
  return out;
}

inline std::string row_text(const std::vector<Placement>& operands,
                            const std::vector<Placement>& results) {
  std::string out;
  for (const auto& p : operands) out += (out.empty() ? "" : ",") + p.to_text();
  out += " -> ";
  for (size_t i = 0; i < results.size(); ++i) out += (i > 0 ? "," : "") + results[i].to_text();
  return out;
}

inline std::vector<int64_t> random_table(int64_t n, int ranks, std::mt19937& rng) {
  std::vector<int64_t> bounds = {0, n};
  for (int i = 1; i < ranks; ++i)
    bounds.push_back(static_cast<int64_t>(rng() % static_cast<uint64_t>(n + 1)));
  std::ranges::sort(bounds);
  std::vector<int64_t> out;
  for (size_t i = 1; i < bounds.size(); ++i) out.push_back(bounds[i] - bounds[i - 1]);
  return out;
}

inline void check_inference(const Proven& p, const OpCall& call, Tally& tally) {
  if (!p.rule->infer) return;
  const auto metas = p.rule->infer(call);
  for (size_t i = 0; i < metas.size() && i < p.expected.size(); ++i) {
    if (!p.expected[i].defined()) continue;
    const auto sizes = p.expected[i].sizes();
    bool fits = metas[i].shape.size() == sizes.size();
    for (size_t d = 0; fits && d < sizes.size(); ++d) {
      fits = metas[i].shape[d] == -1 || metas[i].shape[d] == sizes[d];
    }
    if (!fits && !metas[i].shape.empty()) {
      std::ostringstream message;
      message << p.sample->text << ": infers " << shape_text(metas[i].shape) << " for result " << i
              << " of " << sizes;
      tally.failures.push_back(message.str());
    }
  }
}

inline void prove_rows(const Proven& p, const DeviceMesh& mesh, const std::vector<Placement>& now,
                       std::set<std::string>& done, Tally& tally) {
  const Call call(*p.sample, mesh,
                  [&](size_t o, const at::Tensor& t) { return sharding_of(t, mesh, {now[o]}); });
  if (done.empty()) check_inference(p, call.get(), tally);
  for (const auto& row : p.rule->rows(call.get(), 0)) {
    const std::string text = row_text(row.operands, row.results);
    if (!row.kernel.empty() || !done.insert(text).second) continue;
    if (p.rule->in_place && row.operands[0] != row.results[0]) continue;
    ++tally.rows;
    const std::string error =
        disproof(p, call.get(), by_operand(row.operands), by_operand(row.results), {});
    if (!error.empty())
      tally.failures.push_back(p.sample->text + "  on " + mesh.to_text() + "  " + text + "\n    " +
                               error);
  }
}

inline void prove_choice(const Proven& p, const DeviceMesh& mesh, std::mt19937& rng, Tally& tally) {
  std::string inputs;
  const Call call(*p.sample, mesh, [&](size_t, const at::Tensor& t) {
    for (int tries = 0;; ++tries) {
      std::vector<Placement> placements;
      for (int axis = 0; axis < mesh.ndim(); ++axis) {
        const auto dims = static_cast<uint32_t>(t.dim());
        const uint32_t pick = rng() % 8;
        const int dim = dims == 0 ? 0 : static_cast<int>(rng() % dims);
        if (dims == 0 || pick == 0 || tries > 20) {
          placements.push_back(Replicate());
        } else if (pick == 1 && t.scalar_type() == at::kDouble) {
          placements.push_back(Partial());
        } else if (pick == 2 && t.size(dim) % 2 == 0 && t.size(dim) > 0) {
          placements.push_back(StridedShard(dim, 2));
        } else if (pick == 3) {
          placements.push_back(RaggedShard(dim, random_table(t.size(dim), mesh.size(axis), rng)));
        } else {
          placements.push_back(Shard(dim));
        }
      }
      std::vector<int> order;
      if (mesh.ndim() > 1 && rng() % 3 == 0) order = {mesh.ndim() - 1, 0};
      try {
        Sharding s = sharding_of(t, mesh, placements, order);
        inputs += s.placements_text() + " ";
        return s;
      } catch (const Error&) {
      }
    }
  });
  ++tally.choices;
  try {
    const auto choice = rules::choose(*p.rule, call.get());
    if (!choice.kernel.empty()) return;  // more than the op itself: see tests/dtensor/ops
    std::vector<std::vector<Placement>> operands;
    Orders orders;
    for (const auto& s : choice.operands) {
      operands.emplace_back();
      orders.emplace_back();
      if (!s.defined()) continue;
      operands.back().assign(s.placements().begin(), s.placements().end());
      if (!s.has_default_order()) orders.back() = s.order();
    }
    std::string error;
    if (operands.size() != p.operands.size()) {
      error = "the choice places " + std::to_string(operands.size()) + " operands";
    } else {
      error = disproof(p, call.get(), operands, choice.results, choice.order, orders);
    }
    if (!error.empty()) {
      std::string chosen;
      for (const auto& s : choice.operands)
        chosen += s.defined() ? s.placements_text() + " " : "- ";
      chosen += "-> ";
      for (const auto& r : choice.results) chosen += placements_text(r) + " ";
      tally.failures.push_back(p.sample->text + "  on " + mesh.to_text() + "  from " + inputs +
                               " chose " + chosen + "\n    " + error);
    }
  } catch (const std::exception& e) {
    tally.failures.push_back(p.sample->text + "  from " + inputs + " choose throws: " + e.what());
  }
}

inline void prove_sample(const std::string& line, unsigned seed, Tally& tally,
                         const Rule* rule = nullptr) {
  at::manual_seed(seed);
  std::mt19937 rng(seed);
  std::optional<Sample> sample;
  try {
    sample = parse_sample(line);
  } catch (const std::exception& e) {
    tally.failures.push_back(line + ": " + e.what());
    return;
  }
  const auto& schema = sample->op.schema();
  if (rule == nullptr)
    rule = rules::find_rule(schema.name() +
                            (schema.overload_name().empty() ? "" : "." + schema.overload_name()));
  if (rule == nullptr) {
    tally.failures.push_back(line + ": no rule");
    return;
  }
  std::optional<Proven> p;
  try {
    p = reference({.rule = rule, .sample = &*sample});
  } catch (const std::exception& e) {
    tally.failures.push_back(line +
                             ": the plain op fails: " + std::string(e.what()).substr(0, 200));
    return;
  }
  if (rule->rows) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const DeviceMesh mesh({{"x", ranks}});
      std::set<std::string> done;
      std::vector<Placement> now(p->operands.size());
      prove_rows(*p, mesh, now, done, tally);
      for (size_t o = 0; o < p->operands.size(); ++o) {
        if (!p->operands[o].defined()) continue;
        for (int dim = 0; dim < p->operands[o].dim(); ++dim) {
          const int64_t size = p->operands[o].size(dim);
          now[o] = RaggedShard(dim, random_table(size, ranks, rng));
          prove_rows(*p, mesh, now, done, tally);
          if (size % 2 == 0 && size > 0) {
            now[o] = StridedShard(dim, 2);
            prove_rows(*p, mesh, now, done, tally);
          }
          now[o] = Replicate();
        }
      }
    }
  }
  for (const char* mesh : {"x=2", "x=3", "x=2,y=2", "x=3,y=2", "x=2,y=2,z=2"}) {
    for (int i = 0; i < (rule->rows ? 2 : 8); ++i)
      prove_choice(*p, DeviceMesh::parse(mesh), rng, tally);
  }
}

/// Whether the op of a line exists: an older torch has not all of them. With the newest, a line
/// that names none is a mistake, which its proof reports.
inline bool in_this_torch(std::string_view line) {
#if TORCH_VERSION_MINOR >= 13
  (void)line;
  return true;
#else
  const std::string op(line.substr(0, line.find(' ')));
  const size_t dot = op.find('.');
  const std::string overload = dot == std::string::npos ? "" : op.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({op.substr(0, dot), overload}).has_value();
#endif
}

/// Proves every line; a failure prints the seed.
inline Tally prove_lines(const std::vector<std::string>& lines) {
  at::NoGradGuard no_grad;
  Tally tally;
  const unsigned seed = 20260 + static_cast<unsigned>(lines.size());
  const bool shows = std::getenv("TESSERA_SHOW_SAMPLES") != nullptr;  // for kernels that crash
  for (const auto& line : lines) {
    if (!in_this_torch(line)) continue;
    if (shows) std::fprintf(stderr, "%s\n", line.c_str());
    prove_sample(line, seed, tally);
  }
  for (const auto& failure : tally.failures) ADD_FAILURE() << failure << "\n    seed " << seed;
  std::printf("%zu samples, %d rows, %d choices proven; %zu failures\n", lines.size(), tally.rows,
              tally.choices, tally.failures.size());
  return tally;
}

}  // namespace tessera::test
