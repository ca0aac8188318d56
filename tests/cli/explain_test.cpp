#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/run_cli.h"

namespace tessera::test {
namespace explain_test {

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

nlohmann::json explained(std::vector<std::string> words) {
  words.insert(words.begin(), "explain");
  words.push_back("--json");
  const CliResult result = run_cli(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out, nullptr, false);
}

/// stderr of a call that is wrong.
std::string refused(std::vector<std::string> words) {
  words.insert(words.begin(), "explain");
  const CliResult result = run_cli(words);
  EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
  EXPECT_EQ(result.out, "");
  return result.err;
}

TEST(Cli, ShowsHelpAndVersion) {
  const CliResult help = run_cli({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_TRUE(holds(help.out, "explain")) << help.out;
  EXPECT_EQ(run_cli({"--version"}).exit_code, 0);
  EXPECT_TRUE(holds(run_cli({"explain", "--help"}).out, "tessera explain aten::mm"));
}

TEST(Cli, WithoutAVerbOrWithAnUnknownOneIsWrong) {
  EXPECT_EQ(run_cli({}).exit_code, 2);
  const CliResult unknown = run_cli({"explode"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_TRUE(holds(unknown.err, "explode is not a subcommand")) << unknown.err;
  EXPECT_TRUE(holds(unknown.err, "explain")) << unknown.err;
}

TEST(CliExplain, PrintsTheCandidatesAsATable) {
  const CliResult result =
      run_cli({"explain", "aten::mm", "dp=2,tp=4", "S0,R : 8x16", "R,S1 : 16x32"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  const std::string& out = result.out;
  EXPECT_TRUE(holds(out, "mk, kn -> mn")) << out;
  const size_t header = out.find("operands"), chosen = out.find("S0,R | R,S1");
  ASSERT_NE(chosen, std::string::npos) << out;
  // Columns are aligned.
  const size_t header_line = out.rfind('\n', header) + 1, line = out.rfind('\n', chosen) + 1;
  EXPECT_EQ(out.find("results", header_line) - header_line, out.find("S0,S1", line) - line);
  EXPECT_EQ(out.find("verdict", header_line) - header_line, out.find("chosen", line) - line);
  EXPECT_TRUE(holds(out, "slower")) << out;
  EXPECT_TRUE(holds(out, "nothing is partial here")) << out;
}

TEST(CliExplain, GivesTheSameAsJson) {
  const auto json = explained({"aten::mm", "dp=2,tp=4", "S0,R : 8x16", "R,S1 : 16x32"});
  EXPECT_EQ(json["op"], "aten::mm");
  EXPECT_EQ(json["mesh"], "dp=2,tp=4");
  EXPECT_EQ(json["operands"][1], "dp=2,tp=4 : R,S1 : 16x32");
  const auto& first = json["candidates"][0];
  EXPECT_EQ(first["verdict"], "chosen");
  EXPECT_EQ(first["results"][0], "S0,S1");
  EXPECT_EQ(first["seconds"], 0);
  EXPECT_EQ(first["bytes_sent"], 0);
  EXPECT_GT(json["candidates"].size(), 10U);
  EXPECT_TRUE(json["complete"].get<bool>());
}

TEST(CliExplain, TakesOtherArgumentsByName) {
  EXPECT_EQ(
      explained({"sum.dim_IntList", "tp=4", "S1 : 8x16", "dim=1"})["candidates"][0]["results"],
      (std::vector<std::string>{"P(sum)"}));
  EXPECT_EQ(explained({"mean.dim", "tp=4", "S0 : 8x16", "dim=[-1]", "keepdim=true",
                       "dtype=f64"})["candidates"][0]["results"],
            (std::vector<std::string>{"S0"}));
  EXPECT_EQ(
      explained({"cat", "tp=4", "[S0 : 8x16; S0 : 8x4]", "dim=1"})["candidates"][0]["results"],
      (std::vector<std::string>{"S0"}));
  EXPECT_EQ(explained({"linear", "tp=4", "S1 : 2x8x16", "4x16", "-"})["candidates"][0]["results"],
            (std::vector<std::string>{"S1"}));
  EXPECT_EQ(
      explained({"linalg_vector_norm", "tp=4", "S0 : 8x16", "ord=inf"})["candidates"][0]["results"],
      (std::vector<std::string>{"P(max)"}));
  EXPECT_EQ(
      explained({"_to_copy", "tp=4", "P(sum) : 8 f64", "dtype=bf16"})["candidates"][0]["results"],
      (std::vector<std::string>{"P(sum)"}));
}

TEST(CliExplain, FindsTheOverloadThatFits) {
  EXPECT_EQ(explained({"add", "tp=4", "S0 : 8", "S0 : 8"})["op"], "aten::add.Tensor");
  EXPECT_EQ(explained({"add", "tp=4", "S0 : 8", "other=2"})["op"], "aten::add.Scalar");
  EXPECT_EQ(explained({"sum", "tp=4", "S0 : 8"})["op"], "aten::sum");
  EXPECT_EQ(explained({"cumsum", "tp=4", "S0 : 8", "dim=0"})["op"], "aten::cumsum");
  EXPECT_TRUE(holds(refused({"add", "tp=4", "S0 : 8"}), "aten::add.Tensor(Tensor self"));
}

TEST(CliExplain, AnOpWithoutARuleRunsReplicated) {
  const auto json = explained({"bincount", "tp=4", "S0 : 8 i64"});
  EXPECT_EQ(json["candidates"].size(), 1U);
  EXPECT_EQ(json["candidates"][0]["operands"], (std::vector<std::string>{"R"}));
  EXPECT_GT(json["candidates"][0]["bytes_sent"], 0);
}

TEST(CliExplain, SaysWhatIsWrongWithACall) {
  EXPECT_TRUE(holds(refused({"aten::mmm", "tp=4", "S0 : 8x16"}), "did you mean aten::"));
  EXPECT_TRUE(holds(refused({"mm", "tp=4", "S0 : 8x16"}), "lacks 'mat2'"));
  EXPECT_TRUE(holds(refused({"mm", "tp=4", "S7 : 8x16", "16x8"}), "self: S7"));
  EXPECT_TRUE(holds(refused({"mm", "tp", "S0 : 8x16", "16x8"}), "tp"));
  EXPECT_TRUE(holds(refused({"relu", "tp=4", "S0 : 8", "8"}), "takes no further tensor"));
  EXPECT_TRUE(holds(refused({"mm", "tp=4", "S0 : 8x16", "16x8", "dim=1"}), "no argument 'dim'"));
  EXPECT_TRUE(holds(refused({"cumsum", "tp=4", "S0 : 8x16", "dim=x"}), "'x' is not an integer"));
  EXPECT_TRUE(holds(refused({"matmul", "tp=4", "S0 : 8x16", "16x8"}), "made of other ops"));
  EXPECT_TRUE(holds(refused({"allclose", "tp=4", "S0 : 8", "S0 : 8"}), "made of other ops"));
  EXPECT_TRUE(holds(refused({"mm"}), "mesh is required"));
  EXPECT_TRUE(holds(refused({"mm", "tp=4", "8", "8", "--candidates", "0"}), "POSITIVE"));
}

}  // namespace explain_test
}  // namespace tessera::test
