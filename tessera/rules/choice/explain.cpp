#include "tessera/rules/choice/explain.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/text.h"
#include "tessera/plan/plan.h"
#include "tessera/rules/choice/choose.h"
#include "tessera/rules/choice/search.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::rules {
namespace {

using Line = Explanation::Candidate;
using Verdict = Explanation::Verdict;

std::string joined(const std::vector<std::string>& parts, std::string_view between) {
  std::string out;
  for (const auto& part : parts) {
    if (&part != &parts.front()) out += between;
    out += part;
  }
  return out;
}

/// "S0 | R", without absent operands.
std::string row_text(const std::vector<Placement>& row, const std::vector<Sharding>& operands) {
  std::vector<std::string> texts;
  for (size_t o = 0; o < row.size(); ++o) {
    if (operands[o].defined()) texts.push_back(row[o].to_text());
  }
  return joined(texts, " | ");
}

/// To a tenth: costs come from a model.
std::string micros_text(double seconds) { return join_text(std::round(seconds * 1e7) / 10, " us"); }

int64_t held_on_first_rank(const Sharding& s) {
  const Coordinate origin(static_cast<size_t>(s.mesh().ndim()), 0);
  int64_t count = dtype_bytes(s.dtype());
  for (int64_t size : local_shape(s, origin)) count *= size;
  return count;
}

/// Formats choices as lines; knows the current operands and the shapes of the results.
class Describer {
 public:
  Describer(const Rule& rule, const OpCall& call)
      : rule_(rule), call_(call), now_(call.operands()), metas_(call.results) {
    if (metas_.empty() && rule.infer) metas_ = rule.infer(call);
  }

  Line describe(const Choice& choice) const {
    Line c;
    c.seconds = choice.seconds;
    c.bytes = choice.bytes;
    c.kernel = choice.kernel;
    c.comm = choice.comm;
    for (size_t o = 0; o < choice.operands.size(); ++o) {
      const Sharding& then = choice.operands[o];
      if (!then.defined()) continue;
      c.operands.push_back(then.placements_text());
      c.held += held_on_first_rank(then);
      if (then == now_[o]) continue;
      const bool out = o + static_cast<size_t>(rule_.out_count) >= now_.size();
      const auto plan = out ? plan::cached_plan(then, now_[o]) : plan::cached_plan(now_[o], then);
      for (const auto& step : plan->steps) c.moves.push_back(join_text(o, ": ", step.to_text()));
    }
    for (size_t r = 0; r < choice.results.size(); ++r) {
      c.results.push_back(placements_text(choice.results[r]));
      if (r >= metas_.size() || std::ranges::count(metas_[r].shape, -1) > 0) continue;
      c.held += held_on_first_rank(
          Sharding(call_.mesh, choice.results[r], metas_[r].shape,
                   {.dtype = metas_[r].dtype, .stride = {}, .order = choice.order}));
    }
    return c;
  }

 private:
  const Rule& rule_;
  const OpCall& call_;
  std::vector<Sharding> now_;
  std::vector<ResultMeta> metas_;
};

std::string why_not(const Line& c, const Line& best) {
  if (c.seconds > best.seconds) {
    return join_text(micros_text(c.seconds - best.seconds), " slower");
  }
  if (c.work > best.work) return join_text("as fast, ", c.work / best.work, "x the work");
  if (c.held > best.held) return "as fast, holds more";
  return "as good; the first counts";
}

bool same(const Choice& a, const Choice& b) {
  return a.operands == b.operands && a.results == b.results && a.order == b.order;
}

void add_searched(const Rule& rule, const OpCall& call, const ExplainOptions& options,
                  Explanation& out) {
  const Candidates candidates(rule, call);
  const Describer describer(rule, call);
  const Choice best = search_rows(rule, candidates, {});
  const SearchLimits limits{options.candidates, 20 * options.candidates,
                            std::numeric_limits<double>::infinity(), false};
  size_t all = 1;
  for (int axis = 0; axis < candidates.axes(); ++axis) all *= candidates.of_axis(axis).size();
  size_t seen = 0;
  bool chosen = false;
  search_rows(rule, candidates, limits, [&](Priced&& priced) {
    ++seen;
    Line c;
    if (priced.conflict.empty()) {
      c = describer.describe(priced.choice);
      if (!chosen && same(priced.choice, best)) {
        c.verdict = Verdict::chosen;
        chosen = true;
      }
    } else {
      c.verdict = Verdict::dropped;
      c.why = std::move(priced.conflict);
      const auto texts = [&](auto side, std::vector<std::string>& into) {
        for (size_t t = 0; t < (candidates.at(priced.picks, 0).row.*side).size(); ++t) {
          std::vector<Placement> placements;
          for (int axis = 0; axis < candidates.axes(); ++axis)
            placements.push_back((candidates.at(priced.picks, axis).row.*side)[t]);
          into.push_back(placements_text(placements));
        }
      };
      texts(&Row::operands, c.operands);
      texts(&Row::results, c.results);
    }
    c.work = priced.work;
    out.candidates.push_back(std::move(c));
  });
  out.complete = seen >= all;
}

/// Rows that only pass partial values through are not candidates if nothing is partial.
void add_unused_partials(const Rule& rule, const OpCall& call, int axis, Explanation& out) {
  const auto operands = call.operands();
  for (const auto& s : operands) {
    if (s.defined() && s.placement(axis).is_partial()) return;
  }
  for (const auto& row : rule.rows(call, axis)) {
    if (row.letter >= 0 || std::ranges::none_of(row.operands, &Placement::is_partial)) continue;
    out.refused.push_back(
        {call.mesh.axis_name(axis), row_text(row.operands, operands), "nothing is partial here"});
  }
}

void add_refused(const Rule& rule, const OpCall& call, Explanation& out) {
  const auto operands = call.operands();
  for (int axis = 0; axis < call.mesh.ndim(); ++axis) {
    const std::string name = call.mesh.axis_name(axis);
    const bool all_replicated = std::ranges::all_of(operands, [&](const Sharding& s) {
      return !s.defined() || s.placement(axis).is_replicate();
    });
    if (all_replicated) {
      out.refused.push_back(
          {name, "any", "a replicated operand stays replicated: no operand is sharded"});
      continue;
    }
    add_unused_partials(rule, call, axis, out);
    if (!rule.refused) continue;
    const auto rows = rule.rows(call, axis);
    for (const auto& refusal : rule.refused(call, axis)) {
      // The op itself needs the dim whole, a kernel does not.
      if (std::ranges::find(rows, refusal.operands, &Row::operands) != rows.end()) continue;
      out.refused.push_back({name, row_text(refusal.operands, operands), refusal.why});
    }
  }
}

}  // namespace

Explanation explain(const Rule& rule, const OpCall& call, const ExplainOptions& options) {
  Explanation out;
  out.rule = rule.text;
  if (rule.decide) {
    out.candidates.push_back(Describer(rule, call).describe(rule.decide(call)));
    out.candidates.back().verdict = Verdict::chosen;
  } else if (rule.joint) {
    const Choice best = choose(rule, call);
    const Describer describer(rule, call);
    for (const auto& row : rule.joint(call)) {
      const Choice choice = price_joint(rule, call, row);
      if (choice.seconds == std::numeric_limits<double>::infinity()) continue;
      out.candidates.push_back(describer.describe(choice));
      if (same(choice, best)) out.candidates.back().verdict = Verdict::chosen;
    }
  } else {
    add_searched(rule, call, options, out);
    add_refused(rule, call, out);
  }
  std::ranges::stable_sort(out.candidates, [](const Line& a, const Line& b) {
    const auto rank = [](const Line& c) {
      return std::tuple(c.verdict, c.seconds, c.work, c.held);
    };
    return rank(a) < rank(b);
  });
  for (auto& c : out.candidates) {
    if (c.verdict == Verdict::costlier) c.why = why_not(c, out.candidates.front());
  }
  return out;
}

namespace {

/// ", by the kernel 'cumsum', which combines results".
std::string kernel_text(const Line& c) {
  if (c.kernel.empty()) return {};
  const char* what = c.comm == KernelComm::combine    ? ", which combines results"
                     : c.comm == KernelComm::exchange ? ", which exchanges halos"
                                                      : "";
  return join_text(", by the kernel '", c.kernel, "'", what);
}

}  // namespace

std::string Explanation::to_text() const {
  std::vector<std::vector<std::string>> rows = {
      {"operands", "results", "time", "sent", "work", "held", "verdict"}};
  for (const auto& c : candidates) {
    const std::string side = joined(c.operands, " | ");
    if (c.verdict == Verdict::dropped) {
      rows.push_back({side, joined(c.results, " | "), "", "", "", "", "dropped: " + c.why});
      continue;
    }
    std::string verdict = c.verdict == Verdict::chosen ? "chosen" : c.why;
    verdict += kernel_text(c);
    rows.push_back({side, joined(c.results, " | "), micros_text(c.seconds), bytes_text(c.bytes),
                    join_text(c.work, "x"), bytes_text(c.held), verdict});
  }
  std::string out = join_text("rule  ", rule, "\n\n", table_text(rows));
  for (const auto& c : candidates) {
    if (c.verdict != Verdict::chosen || c.moves.empty()) continue;
    out += "\nto get there, by operand\n";
    for (const auto& move : c.moves) out += "  " + move + "\n";
  }
  if (!complete) out += "(more combinations exist; these are the most promising)\n";
  if (refused.empty()) return out;
  rows = {{"not offered on", "operands", "why"}};
  for (const auto& r : refused) rows.push_back({r.axis, r.operands, r.why});
  return join_text(out, "\n", table_text(rows));
}

}  // namespace tessera::rules
