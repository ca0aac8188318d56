#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/run_cli.h"
#include "tests/support_pure/temp_dir.h"

/// The small models of tests/partition/data, sharded, run on processes and compared with the whole.
namespace tessera {
namespace shard_models_test {

using test::CliResult;
using test::run_cli;
using test::TempDir;

struct Case {
  std::string model;
  std::string form;
  std::string mesh;
  std::string plan;    ///< a file of tests/partition/plans, or auto
  std::string memory;  ///< of auto
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << "_" << c.form << " on " << c.mesh << " by " << c.plan;
}

/// Each model on 2, 3 and 4 ranks with a plan, each time in another form; and with a plan that is
/// found, under a limit that makes it shard weights.
std::vector<Case> cases() {
  std::vector<Case> out;
  const std::vector<std::string> forms = {"raw",         "core_dynamic", "infer",
                                          "raw_dynamic", "core",         "infer_dynamic"};
  size_t form = 0;
  for (const char* model : {"mlp", "gpt", "llama", "bert", "vit", "moe"}) {
    for (const char* mesh : {"tp=2", "tp=3", "tp=4"}) {
      out.push_back({model, forms[form++ % forms.size()], mesh, model, ""});
    }
    out.push_back({model, forms[form++ % forms.size()], "tp=2", "auto", "70%"});
  }
  out.push_back({"llama", "raw", "dp=2,tp=2", "llama", ""});
  out.push_back({"gpt", "infer_dynamic", "dp=2,tp=2", "auto", "50%"});
  return out;
}

class ShardedModels : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Cli, ShardedModels, ::testing::ValuesIn(cases()));

TEST_P(ShardedModels, ComputeWhatTheWholeDoes) {
  const Case& c = GetParam();
  const TempDir dir;
  const std::string program = "tests/partition/data/" + c.model + "_" + c.form + ".pt2";
  const std::string out = (dir / "out").string();
  const bool found = c.plan == "auto";
  std::vector<std::string> words = {"shard", program, "--mesh", c.mesh, "-o", out, "--json"};
  words.insert(words.end(),
               {"--plan", found ? "auto" : "tests/partition/plans/" + c.plan + ".json"});
  if (found) words.insert(words.end(), {"--memory", c.memory});
  const CliResult sharded = run_cli(words);
  ASSERT_EQ(sharded.exit_code, 0) << sharded.err;
  const auto json = nlohmann::json::parse(sharded.out);
  EXPECT_GT(json["collectives"], 0);  // something is sharded
  const CliResult compared = run_cli({"verify", program, out});
  EXPECT_EQ(compared.exit_code, 0) << compared.out << compared.err;
}

}  // namespace shard_models_test
}  // namespace tessera
