#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/run_cli.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera {
namespace shard_test {

using test::CliResult;
using test::contents_of;
using test::run_cli;
using test::TempDir;

const std::string kData = "tests/partition/data/";
const std::string kPlans = "tests/partition/plans/";

std::vector<std::string> shard(const std::string& program, const std::string& mesh,
                               const std::string& plan, const std::filesystem::path& out) {
  return {"shard", kData + program + ".pt2", "--mesh", mesh, "--plan", plan, "-o", out.string()};
}

TEST(Shard, WritesAProgramForEachRankAndSaysWhatItCosts) {
  const TempDir dir;
  const CliResult result = run_cli(shard("mlp_raw", "tp=3", kPlans + "mlp.json", dir / "out"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"mlp_raw.pt2 for tp=3", "rank_2.pt2", "up.weight", "1 all_reduce"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  }
  EXPECT_TRUE(std::filesystem::exists(dir / "out/manifest.json"));
  EXPECT_TRUE(std::filesystem::exists(dir / "out/rank_0.pt2"));
}

TEST(Shard, WritesOneFileThatCanBeInspectedRunAndVerified) {
  const TempDir dir;
  const std::string out = (dir / "all.pt2").string();
  auto words = shard("llama_raw", "dp=2,tp=2", kPlans + "llama.json", out);
  words.emplace_back("--single-file");
  const CliResult written = run_cli(words);
  ASSERT_EQ(written.exit_code, 0) << written.err;
  EXPECT_NE(written.out.find("all.pt2"), std::string::npos) << written.out;
  const CliResult shown = run_cli({"inspect", out});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  for (const char* part : {"sharded for dp=2,tp=2", "rank_3", "inputs"}) {
    EXPECT_NE(shown.out.find(part), std::string::npos) << part << "\n" << shown.out;
  }
  const CliResult ran = run_cli({"run", out, "--random", "0", "--json"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(nlohmann::json::parse(ran.out)["ranks"], 4);
  const CliResult same = run_cli({"verify", kData + "llama_raw.pt2", out, "--json"});
  ASSERT_EQ(same.exit_code, 0) << same.err;
  EXPECT_EQ(nlohmann::json::parse(same.out)["ok"], true);
  const CliResult wrong = run_cli({"run", out, "-n", "2", "--random", "0"});
  EXPECT_EQ(wrong.exit_code, 2) << wrong.err;
}

TEST(Shard, JsonHoldsTheManifestAndTheCosts) {
  const TempDir dir;
  auto words = shard("mlp_raw", "tp=2", kPlans + "mlp.json", dir / "out");
  words.push_back("--json");
  const CliResult result = run_cli(words);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["collectives"], 1);
  EXPECT_EQ(json["manifest"]["mesh"], "tp=2");
  EXPECT_EQ(json["weights"][0]["placements"], "S0");
}

TEST(Shard, ThePlanThatItWritesCanBeGivenBack) {
  const TempDir dir;
  auto words = shard("llama_raw", "tp=2", kPlans + "llama.json", dir / "first");
  words.insert(words.end(), {"--plan-out", (dir / "plan.json").string()});
  ASSERT_EQ(run_cli(words).exit_code, 0);
  const CliResult again =
      run_cli(shard("llama_raw", "tp=2", (dir / "plan.json").string(), dir / "second"));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  for (const char* file : {"rank_0.pt2", "rank_1.pt2", "manifest.json"}) {
    EXPECT_TRUE(contents_of(dir / "first" / file) == contents_of(dir / "second" / file)) << file;
  }
}

void expect_wrong(const std::vector<std::string>& words, std::string_view why) {
  const CliResult result = run_cli(words);
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_NE(result.err.find(why), std::string::npos) << result.err;
}

TEST(Shard, BadInputIsExitCodeTwoAndLeavesNoDirectory) {
  const TempDir dir;
  const auto out = dir / "out";
  expect_wrong(shard("no_such", "tp=2", "auto", out), "no_such.pt2");
  expect_wrong(shard("mlp_raw", "tp", "auto", out), "tp");
  expect_wrong(shard("mlp_raw", "tp=2@1,2", "auto", out), "ranks 0 to 1");
  expect_wrong(shard("mlp_raw", "tp=2", "none.json", out), "none.json");
  std::ofstream(dir / "plan.json") << R"({"modules": {"upp": "colwise"}})";
  expect_wrong(shard("mlp_raw", "tp=2", (dir / "plan.json").string(), out), "upp");
  std::ofstream(dir / "broken.json") << R"({"modules": )";
  expect_wrong(shard("mlp_raw", "tp=2", (dir / "broken.json").string(), out), "broken.json");
  const std::string whole = contents_of(kData + "mlp_raw.pt2");
  std::ofstream(dir / "truncated.pt2", std::ios::binary) << whole.substr(0, whole.size() / 2);
  expect_wrong({"shard", (dir / "truncated.pt2").string(), "--mesh", "tp=2", "-o", out.string()},
               "truncated.pt2");
  expect_wrong({"shard", kData + "mlp_raw.pt2", "-o", out.string()}, "--mesh");
  auto words = shard("mlp_raw", "tp=2", "auto", out);
  words.insert(words.end(), {"--plan-out", (dir / "none" / "plan.json").string()});
  expect_wrong(words, "there is no directory");
  EXPECT_FALSE(std::filesystem::exists(out));
  std::filesystem::create_directory(out);
  expect_wrong(shard("mlp_raw", "tp=2", "auto", out), "exists");
  EXPECT_TRUE(std::filesystem::is_empty(out));
}

TEST(ExplainProgram, ShowsNodesAndWhereCommunicationComesFrom) {
  const CliResult result =
      run_cli({"explain", kData + "mlp_raw.pt2", "--mesh", "tp=2", "--plan", kPlans + "mlp.json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"linear_1: all_reduce over tp  P(sum) -> R", "aten::gelu",
                           "1 all_reduce", "a rank sends"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  }
}

TEST(ExplainProgram, WritesJsonAndAPageOfItsOwn) {
  const TempDir dir;
  const CliResult result = run_cli({"explain", kData + "llama_core.pt2", "--mesh", "dp=2,tp=2",
                                    "--json", "--html", (dir / "graph.html").string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["mesh"], "dp=2,tp=2");
  EXPECT_GT(json["nodes"].size(), 100U);
  const std::string page = contents_of(dir / "graph.html");
  EXPECT_NE(page.find("<table id=\"nodes\">"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos);  // nothing from elsewhere
}

TEST(ExplainProgram, WithoutAMeshIsAWrongCall) {
  expect_wrong({"explain", kData + "mlp_raw.pt2"}, "--mesh");
  expect_wrong({"explain", "aten::mm"}, "mesh");
  expect_wrong({"explain", kData + "mlp_raw.pt2", "--mesh", "tp=2", "--html", "/none/x.html"},
               "there is no directory");
}

}  // namespace shard_test
}  // namespace tessera
