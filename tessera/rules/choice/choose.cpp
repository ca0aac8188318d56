#include "tessera/rules/choice/choose.h"

#include <limits>

#include "tessera/base/errors.h"
#include "tessera/rules/choice/search.h"

namespace tessera::rules {
namespace {

Choice choose_joint(const Rule& rule, const OpCall& call) {
  Choice best;
  best.seconds = std::numeric_limits<double>::infinity();
  for (const auto& row : rule.joint(call)) {
    Choice choice = price_joint(rule, call, row);
    if (choice.seconds < best.seconds) best = std::move(choice);
    if (best.seconds == 0) break;
  }
  ensure(best.seconds < std::numeric_limits<double>::infinity(), "a rule offers no row at all");
  return best;
}

}  // namespace

Choice choose(const Rule& rule, const OpCall& call) {
  if (rule.decide) return rule.decide(call);
  if (rule.joint) return choose_joint(rule, call);
  return search_rows(rule, Candidates(rule, call), {});
}

}  // namespace tessera::rules
