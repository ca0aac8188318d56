#include <gtest/gtest.h>
#include <torch/version.h>

#include "tessera/rules/expand.h"
#include "tessera/rules/registry/registry.h"
#include "tests/rules_proof/prove_all.h"
#include "tests/rules_proof/sample_files.h"

/// Every row of every rule has a sample that reaches it, or is listed in unproven.txt with the
/// reason. A row is named by what it comes from: an op, a line of its rule, and the letter that is
/// sharded or the clause that lets a partial value pass.
namespace tessera::test {
namespace unproven_test {

using Names = std::set<std::string>;

std::string key_name(int key) {
  if (key < 128) return {static_cast<char>(key)};
  if (key < 512) return "*";
  return std::string(1, static_cast<char>((key - 512) / 16)) + "..";
}

std::string clause_name(const rules::Clause& clause, ReduceOp op) {
  std::string out = "P(" + std::string(reduce_op_name(op)) + ") of";
  for (const int operand : clause.operands) out += " " + std::to_string(operand);
  return out;
}

/// What a line offers.
Names offered(const rules::Notation& line) {
  Names out;
  std::string whole;
  for (const auto& c : line.clauses) {
    if (c.kind == rules::Clause::Kind::whole && c.condition.attribute.empty() &&
        c.attribute.empty())
      whole += c.letters;
    if (c.kind == rules::Clause::Kind::pass) {
      for (const ReduceOp op : c.ops) out.insert(clause_name(c, op));
    }
    if (c.kind == rules::Clause::Kind::ignore) out.insert("partial, ignored");
    if (c.kind == rules::Clause::Kind::reduce)
      out.insert("reduce " + std::string(reduce_op_name(c.ops[0])));
  }
  for (const auto& term : line.operands) {
    if (term.anything) continue;
    for (const auto& dim : term.dims) {
      using Kind = rules::Dim::Kind;
      const bool star = dim.kind == Kind::star;
      if (dim.kind == Kind::one || dim.kind == Kind::ones || (dim.whole && !star)) continue;
      const char letter = star ? '*' : dim.letter;
      if (whole.find(letter) != std::string::npos) continue;
      out.insert(std::string(1, letter) + (dim.kind == Kind::run ? ".." : ""));
    }
  }
  return out;
}

/// What the rows of a call come from.
void note_rows(const rules::Bound& bound, const std::vector<rules::Row>& rows, Names& out) {
  for (const auto& row : rows) {
    if (row.letter >= static_cast<int>(bound.letters.size())) continue;  // declared by a kernel
    if (row.letter >= 0) {
      const auto& letter = bound.letters[static_cast<size_t>(row.letter)];
      out.insert(key_name(letter.key));
      if (letter.reduce) out.insert("reduce " + std::string(reduce_op_name(*letter.reduce)));
      continue;
    }
    for (const auto& c : bound.notation->clauses) {
      if (c.kind == rules::Clause::Kind::ignore) out.insert("partial, ignored");
      if (c.kind != rules::Clause::Kind::pass) continue;
      for (const ReduceOp op : c.ops) {
        bool fits = true;
        for (size_t o = 0; o < row.operands.size(); ++o) {
          if (!bound.operands[o].defined()) continue;
          const auto term =
              static_cast<int>(bound.term_of_operand[o] - bound.notation->operands.data());
          const bool named = std::ranges::find(c.operands, term) != c.operands.end() ||
                             bound.term_of_operand[o]->addend;
          fits &= !named || row.operands[o] == Partial(op);
        }
        if (fits) out.insert(clause_name(c, op));
      }
    }
  }
}

/// By op and number of the line.
std::map<std::string, Names> reached() {
  std::map<std::string, Names> out;
  std::vector<std::string> lines = pointwise_samples();
  for (const auto& family : sample_families()) {
    for (auto& line : samples_of(family)) lines.push_back(std::move(line));
  }
  for (const auto& line : lines) {
    if (!in_this_torch(line)) continue;
    at::manual_seed(1);
    const Sample sample = parse_sample(line);
    const std::string op = line.substr(0, line.find(' '));
    const rules::Rule* rule = rules::find_rule(op);
    if (rule == nullptr) continue;  // its proof says so
    out[op].insert("a sample");
    if (rule->text.starts_with("code") || !rule->rows ||
        rule->text.find("  (") != std::string::npos)
      continue;
    const auto notation = rules::parse_notation(rule->text);
    for (const char* mesh_text : {"x=2", "x=3"}) {
      const DeviceMesh mesh = DeviceMesh::parse(mesh_text);
      for (const Placement& now : {Replicate(), Partial()}) {
        const Call call(sample, mesh, [&](size_t, const at::Tensor& t) {
          const bool can = !now.is_partial() || at::isFloatingType(t.scalar_type());
          return sharding_of(t, mesh, {can ? now : Replicate()});
        });
        const auto bound = rules::bind(notation, call.get());
        if (!bound) continue;
        const auto number = bound->notation - notation.data();
        note_rows(*bound, rules::expand(*bound, call.get(), 0),
                  out[op + " line " + std::to_string(number)]);
      }
    }
  }
  return out;
}

/// The rows that no sample reaches: "aten::mm line 0: k".
Names unreached() {
  const auto have = reached();
  Names out;
  for (const auto& op : rules::ruled_ops()) {
    if (!op.starts_with("aten::") || !op_exists(op)) continue;
    const rules::Rule* rule = rules::find_rule(op);
    if (!have.contains(op)) {
      out.insert(op);
      continue;
    }
    if (rule->text.starts_with("code") || !rule->rows) continue;
    const auto notation = rules::parse_notation(rule->text);
    for (size_t number = 0; number < notation.size(); ++number) {
      const std::string name = op + " line " + std::to_string(number);
      const auto found = have.find(name);
      if (found == have.end()) {
        out.insert(name);
        continue;
      }
      for (const auto& row : offered(notation[number])) {
        if (!found->second.contains(row)) out.insert(name + ": " + row);
      }
    }
  }
  return out;
}

TEST(RowsOfRules, AreAllReachedOrListedWithAReason) {
  rules::enable_kernel("mask", rules::KernelComm::none);
  rules::enable_kernel("norm");
  rules::enable_kernel("moments");
  rules::enable_kernel("nll");
  rules::enable_kernel("nll_backward", rules::KernelComm::none);
  std::map<std::string, std::string> listed;
  for (const auto& line : lines_of("tests/rules_proof/unproven.txt")) {
    const size_t split = line.find(" | ");
    ASSERT_NE(split, std::string::npos) << line;
    listed[line.substr(0, split)] = line.substr(split + 3);
  }
  const Names missing = unreached();
  for (const auto& row : missing) EXPECT_TRUE(listed.contains(row)) << row;
  for (const auto& [row, reason] : listed) EXPECT_TRUE(missing.contains(row)) << row;
}

}  // namespace unproven_test
}  // namespace tessera::test
