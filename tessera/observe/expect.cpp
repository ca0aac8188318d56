#include "tessera/observe/expect.h"

#include <vector>

#include "tessera/base/errors.h"
#include "tessera/observe/recorder.h"

namespace tessera::comm {
namespace {

struct Clause {
  int64_t expected = 0;
  CommOp op = CommOp::barrier;
  std::string axis;  // "": any
  int64_t found = 0;

  std::string to_text() const { return join_text(op_name(op), axis.empty() ? "" : " on ", axis); }
};

struct Expectation {
  std::vector<Clause> clauses;
  std::optional<int64_t> implicit;
  bool others_allowed = false;
};

std::string expect_axis(Scanner& text) {
  std::string axis = text.expect_name("an axis");
  while (text.accept('+')) axis += "+" + text.expect_name("an axis");
  return axis;
}

Expectation parse(std::string_view expected) {
  Expectation out;
  Scanner text(expected);
  if (text.accept_word("nothing")) {
    text.expect_done();
    return out;
  }
  do {
    if (text.accept('.')) {
      text.expect('.');
      text.expect('.');
      out.others_allowed = true;
      continue;
    }
    const int64_t n = text.expect_int("a count, \"nothing\" or \"...\"");
    if (text.accept_word("implicit")) {
      out.implicit = n;
      continue;
    }
    const std::string name = text.expect_name("an op");
    const auto op = op_of_name(name);
    require(op.has_value(), "expect_comm: \"", name, "\" in \"", expected,
            "\" is not an op; there are all_reduce, all_gather, reduce_scatter, all_to_all, "
            "broadcast, scatter, gather, reduce, send, recv, barrier");
    out.clauses.push_back({n, *op, text.accept_word("on") ? expect_axis(text) : "", 0});
  } while (text.accept(','));
  text.expect_done();
  return out;
}

/// The clause that an event counts for: one that names its axis, else one that names none.
Clause* clause_for(std::vector<Clause>& clauses, const CommEvent& event) {
  Clause* general = nullptr;
  for (Clause& clause : clauses) {
    if (clause.op != event.op) continue;
    if (clause.axis == event.axis && !clause.axis.empty()) return &clause;
    if (clause.axis.empty()) general = &clause;
  }
  return general;
}

}  // namespace

std::string expect_comm(const Recorder& recorder, std::string_view expected) {
  Expectation wanted = parse(expected);
  const auto events = recorder.events();
  std::string difference;
  int64_t implicit = 0;
  for (const CommEvent& event : events) {
    implicit += event.implicit ? 1 : 0;
    if (Clause* clause = clause_for(wanted.clauses, event)) {
      ++clause->found;
    } else if (!wanted.others_allowed) {
      difference += join_text("  not expected: ", event.to_text(), "\n");
    }
  }
  for (const Clause& clause : wanted.clauses) {
    if (clause.found == clause.expected) continue;
    difference += join_text("  ", clause.to_text(), ": expected ", clause.expected, ", found ",
                            clause.found, "\n");
  }
  if (wanted.implicit && *wanted.implicit != implicit) {
    difference += join_text("  implicit: expected ", *wanted.implicit, ", found ", implicit, "\n");
  }
  if (difference.empty()) return {};
  std::string out = join_text("communication of rank ", recorder.rank(), " is not \"", expected,
                              "\":\n", difference, "all ", events.size(), " events:\n");
  for (const CommEvent& event : events) out += join_text("  ", event.to_text(), "\n");
  return out;
}

void require_comm(const Recorder& recorder, std::string_view expected) {
  const std::string difference = expect_comm(recorder, expected);
  if (!difference.empty()) throw Error(difference);
}

}  // namespace tessera::comm
