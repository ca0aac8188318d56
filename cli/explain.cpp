#include "tessera/rules/choice/explain.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/explain_file.h"
#include "cli/op_call_text.h"
#include "cli/verbs.h"
#include "tessera/base/errors.h"
#include "tessera/cost/machine.h"
#include "tessera/dtensor/kernels/register.h"
#include "tessera/rules/registry/registry.h"

/// tessera explain <op> <mesh> <argument>...: the dispatcher's decision, and the alternatives.
/// tessera explain M.pt2 --mesh <mesh>: the same for every node of a program (explain_file.h).
namespace tessera::cli {
namespace {

constexpr const char* kExplainFooter = R"(
Arguments: tensors in the order of the op's schema, as "placements : shape", the rest by name.
  "S0,R : 8x16"        rows over the first mesh axis, a copy along the second
  "R,P(sum) : 8x16 bf16"  partial sums; element types f32 (default), bf16, i64, ...
  8x16                 replicated          -                    a tensor that is not given
  "[S0 : 8; S0 : 4]"   a list of tensors   dim=0,1 p=2.5 keepdim=true dtype=bf16

Examples
  tessera explain aten::mm dp=2,tp=4 "S0,R : 8x16" "R,S1 : 16x32"
  tessera explain sum.dim_IntList tp=4 "S1 : 8x16" dim=1
  tessera explain cat cuda:tp=8 "[S0 : 8x16; S0 : 8x16]" dim=0 --json
  tessera explain model.pt2 --mesh tp=8                     # every node of an exported program
  tessera explain model.pt2 --mesh dp=2,tp=4 --plan plan.json --html graph.html)";

struct ExplainOptions {
  std::string op;
  std::string mesh;
  std::vector<std::string> words;
  std::string plan = "auto";
  std::string memory;
  std::string html;
  bool json = false;
  int candidates = 32;
};

/// Such ops are decomposed before dispatch decides about shardings.
void require_own_sharding(const OpCallText& text) {
  require(!dtensor::is_made_of_ops(text.name()), text.name(),
          " is made of other ops and has no sharding of its own; explain those (matmul: aten::mm, "
          "aten::bmm; einsum: aten::bmm; allclose: aten::isclose, aten::all)");
}

/// Without a rule, all operands are replicated.
rules::Rule no_rule(const OpCallText& text) {
  rules::Rule rule;
  rule.op = text.name();
  rule.text = "none: runs on replicated operands";
  rule.result_count = static_cast<int>(text.op().schema().returns().size());
  rule.rows = [](const rules::OpCall&, int) { return std::vector<rules::Row>(); };
  return rule;
}

nlohmann::json to_json(const OpCallText& text, const rules::Explanation& explanation) {
  static constexpr const char* kVerdicts[] = {"chosen", "costlier", "dropped"};
  nlohmann::json operands = nlohmann::json::array();
  for (const auto& s : text.call().operands()) {
    operands.push_back(s.defined() ? nlohmann::json(s.to_text()) : nlohmann::json());
  }
  nlohmann::json candidates = nlohmann::json::array();
  for (const auto& c : explanation.candidates) {
    nlohmann::json one = {{"verdict", kVerdicts[static_cast<size_t>(c.verdict)]},
                          {"operands", c.operands},
                          {"results", c.results},
                          {"why", c.why}};
    if (c.verdict != rules::Explanation::Verdict::dropped) {
      one.update({{"seconds", c.seconds},
                  {"bytes_sent", c.bytes},
                  {"work", c.work},
                  {"bytes_held", c.held},
                  {"moves", c.moves},
                  {"kernel", c.kernel}});
    }
    candidates.push_back(std::move(one));
  }
  nlohmann::json refused = nlohmann::json::array();
  for (const auto& r : explanation.refused) {
    refused.push_back({{"axis", r.axis}, {"operands", r.operands}, {"why", r.why}});
  }
  return {{"op", text.name()},        {"mesh", text.call().mesh.to_text()},
          {"operands", operands},     {"rule", explanation.rule},
          {"candidates", candidates}, {"complete", explanation.complete},
          {"not_offered", refused}};
}

void run_explain(const ExplainOptions& options) {
  if (is_program_file(options.op)) {
    require(options.words.empty(), "explain ", options.op, ": unexpected ", options.words[0]);
    return explain_file({.choose = {options.op, options.mesh, options.plan, options.memory},
                         .html = options.html,
                         .json = options.json});
  }
  require(!options.mesh.empty(), "explain ", options.op,
          ": mesh is required, and the op's arguments");
  require(!options.words.empty(), "explain ", options.op, ": give the op's arguments");
  const OpCallText text(options.op, options.mesh, options.words);
  require_own_sharding(text);
  const rules::Rule* known = rules::find_rule(text.name());
  const rules::Rule fallback = known == nullptr ? no_rule(text) : rules::Rule();
  const auto explanation = rules::explain(known != nullptr ? *known : fallback, text.call(),
                                          {.candidates = options.candidates});
  if (options.json) {
    std::cout << to_json(text, explanation).dump(2) << "\n";
    return;
  }
  std::cout << text.name() << " on " << text.call().mesh.to_text() << "\n";
  for (const auto& s : text.call().operands()) {
    if (s.defined()) std::cout << "  " << s.to_text() << "\n";
  }
  std::cout << explanation.to_text();
}

}  // namespace

void add_explain(CLI::App& app) {
  auto options = std::make_shared<ExplainOptions>();
  CLI::App* verb = app.add_subcommand(
      "explain", "Which shardings an op can run in, what each costs, and which is chosen");
  verb->add_option("op", options->op,
                   "as aten::mm, aten::sum.dim_IntList, or without aten::; or a program, M.pt2")
      ->required();
  verb->add_option("--mesh,mesh", options->mesh, "as dp=2,tp=4 or cuda:dp=128,tp=8");
  verb->add_option("arguments", options->words, "of an op: tensors, then name=value; see below");
  verb->add_option("--plan", options->plan, "of a program: a file of JSON, or auto")
      ->capture_default_str();
  verb->add_option("--memory", options->memory,
                   "of a program: the most that a rank may hold of weights, as 64M or 30%");
  verb->add_option("--html", options->html, "of a program: also write a page to this file");
  verb->add_flag("--json", options->json, "machine-readable output");
  verb->add_option("--candidates", options->candidates, "how many to price and list")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  verb->footer(kExplainFooter);
  verb->callback([options] { run_explain(*options); });
}

}  // namespace tessera::cli
