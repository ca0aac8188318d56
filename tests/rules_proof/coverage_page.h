#pragma once

#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "tessera/rules/registry/registry.h"
#include "tests/rules_proof/op_kinds.h"

/// docs/op_coverage.md: what becomes of every ATen overload that libtorch registers.
namespace tessera::test {

using Names = std::set<std::string>;

struct Coverage {
  std::map<OpKind, Names> by_kind;
  std::map<std::string, Names> by_rule;    ///< text of the rule -> overloads
  std::map<std::string, Names> by_reason;  ///< of the impossible ones
};

/// The rule without what it says of the form: "(in place)".
inline std::string base_text(std::string text) {
  if (text.starts_with("each element: ")) text = text.substr(14);
  return text.substr(0, text.find("  ("));
}

inline Coverage coverage_of_aten() {
  Coverage out;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!name.name.starts_with("aten::") || !op) continue;
    const std::string full = dtensor::op_name(name), local = full.substr(6);
    const OpKind kind = kind_of(*op);
    out.by_kind[kind].insert(local);
    if (kind == OpKind::ruled) out.by_rule[base_text(rules::find_rule(full)->text)].insert(local);
    if (kind == OpKind::impossible)
      out.by_reason[std::string(why_impossible(name.name.substr(6)))].insert(local);
  }
  return out;
}

inline std::string in_cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.insert(at, "\\");
  return text;
}

inline std::string listed(const Names& names) {
  std::string out;
  for (const auto& name : names) out += (out.empty() ? "" : " ") + name;
  return out;
}

/// Names in lines of at most 100 columns.
inline std::string paragraph(const Names& names) {
  std::string out = "```\n", line;
  for (const auto& name : names) {
    if (line.size() + name.size() + 1 > 100) {
      out += line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + name;
  }
  return out + line + "\n```\n";
}

inline std::string coverage_page(const Coverage& coverage) {
  const auto names = [&](OpKind kind) {
    const auto it = coverage.by_kind.find(kind);
    return it == coverage.by_kind.end() ? Names() : it->second;
  };
  size_t all = 0;
  for (const auto& [kind, ops] : coverage.by_kind) all += ops.size();
  std::ostringstream out;
  out << "# Ops and how they are sharded\n\n"
         "Every overload of ATen that libtorch 2.13 registers. This page is made by a test\n"
         "(`make coverage` writes it anew); [rule_notation.md](rule_notation.md) explains the "
         "lines.\n\n"
         "| | overloads | on sharded tensors |\n|---|---|---|\n";
  const auto row = [&](OpKind kind, const char* name, const char* what) {
    out << "| " << name << " | " << names(kind).size() << " | " << what << " |\n";
  };
  row(OpKind::ruled, "[ruled](#ruled)", "runs on shards, in the cheapest of the rows of its rule");
  row(OpKind::handled, "[handled](#handled)", "the dispatcher does it itself");
  row(OpKind::composite, "[decomposes](#decomposes)",
      "made of other ops, which libtorch calls one by one");
  row(OpKind::makes_tensors, "[makes tensors](#makes-tensors)",
      "takes none, so no sharded one either; `tessera::zeros` and its like make sharded ones");
  row(OpKind::replicates, "[replicates](#replicates)",
      "no rule: runs on replicated operands and says so once");
  row(OpKind::impossible, "[impossible](#impossible)", "not for sharded tensors; see why there");
  out << "| all | " << all << " | |\n\n## Ruled\n\n"
      << "In-place, out=, `_copy` and foreach forms are listed with the op whose rule they "
         "follow.\n\n| rule | overloads |\n|---|---|\n";
  for (const auto& [rule, ops] : coverage.by_rule) {
    const bool code = rule.starts_with("code");
    out << "| " << (code ? "" : "`") << in_cell(rule) << (code ? "" : "`") << " | " << listed(ops)
        << " |\n";
  }
  out << "\n## Handled\n\n" << paragraph(names(OpKind::handled));
  out << "\n## Decomposes\n\n" << paragraph(names(OpKind::composite));
  out << "\n## Makes tensors\n\n" << paragraph(names(OpKind::makes_tensors));
  out << "\n## Replicates\n\n"
         "Shapes that depend on values (`unique`, `nonzero`), orders over all elements, and ops "
         "that "
         "no\nprogram has needed yet. A line in a table makes one ruled.\n\n"
      << paragraph(names(OpKind::replicates));
  out << "\n## Impossible\n";
  for (const auto& [reason, ops] : coverage.by_reason)
    out << "\n"
        << static_cast<char>(std::toupper(reason[0])) << reason.substr(1) << ".\n\n"
        << paragraph(ops);
  return out.str();
}

}  // namespace tessera::test
