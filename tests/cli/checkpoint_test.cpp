#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tessera/checkpoint/load.h"
#include "tessera/checkpoint/save.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/cli/run_cli.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera {
namespace checkpoint_test {

using test::run_cli;
using test::TempDir;

void save_sample(const std::filesystem::path& path, double last) {
  comm::run_ranks(2, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=2");
    State state = {{"w", distribute_tensor(at::arange(30.0).reshape({5, 6}), mesh, {Shard(0)})},
                   {"bias", at::full({3}, last)},
                   {"step", PlainValue(7)}};
    save(state, path, {.paths = {{"step", {"step"}}}});
  });
}

TEST(CheckpointVerb, InspectsAndVerifies) {
  const TempDir dir;
  const std::string path = (dir / "a").string();
  save_sample(path, 1);
  const auto shown = run_cli({"checkpoint", "inspect", path});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  for (const std::string part :
       {"w", "f32", "5x6", "step", "7", "2 tensors of", "1 values", "with checksums"}) {
    EXPECT_NE(shown.out.find(part), std::string::npos) << part << "\n" << shown.out;
  }
  const auto json = nlohmann::json::parse(run_cli({"checkpoint", "inspect", path, "--json"}).out);
  EXPECT_EQ(json["entries"]["w"]["chunks"].size(), 2u);
  EXPECT_EQ(json["bytes"], 132);
  EXPECT_EQ(run_cli({"checkpoint", "verify", path}).exit_code, 0);
  std::fstream(dir / "a/__0_0.distcp", std::ios::in | std::ios::out).seekp(300).put('!');
  const auto damaged = run_cli({"checkpoint", "verify", path});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_NE(damaged.err.find("__0_0.distcp is damaged"), std::string::npos) << damaged.err;
  EXPECT_EQ(run_cli({"checkpoint", "inspect", (dir / "none").string()}).exit_code, 2);
}

TEST(CheckpointVerb, TellsWhatDiffers) {
  const TempDir dir;
  save_sample(dir / "a", 1);
  save_sample(dir / "b", 1.5);
  const std::string a = (dir / "a").string();
  const std::string b = (dir / "b").string();
  EXPECT_EQ(run_cli({"checkpoint", "diff", a, a}).exit_code, 0);
  const auto found = run_cli({"checkpoint", "diff", a, b});
  EXPECT_EQ(found.exit_code, 1);
  EXPECT_NE(found.out.find("bias  3 of 3 elements differ, by up to 0.5"), std::string::npos)
      << found.out;
  EXPECT_EQ(run_cli({"checkpoint", "diff", a, b, "--tolerance", "0.5"}).exit_code, 0);
  EXPECT_EQ(run_cli({"checkpoint", "diff", a, b, "--tolerance", "-1"}).exit_code, 2);
}

/// Not as doubles: beyond 2^53 neighbours have the same one. NaN is the same as NaN.
TEST(CheckpointVerb, ComparesWholeNumbersExactlyAndNaNWithNaN) {
  const TempDir dir;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto save_number = [&](const std::string& name, int64_t number) {
    save({{"n", at::full({3}, number, at::kLong)},
          {"x", at::full({2}, nan)},
          {"v", PlainValue::list({PlainValue(nan)})}},
         dir / name);
  };
  save_number("a", int64_t{1} << 60);
  save_number("b", (int64_t{1} << 60) + 1);
  const std::string a = (dir / "a").string(), b = (dir / "b").string();
  EXPECT_EQ(run_cli({"checkpoint", "diff", a, a}).out, "no difference\n");
  EXPECT_EQ(run_cli({"checkpoint", "diff", a, b}).out, "n  3 of 3 elements differ, by up to 1\n");
  EXPECT_EQ(run_cli({"checkpoint", "diff", a, b, "--tolerance", "1"}).exit_code, 0);
}

TEST(CheckpointVerb, ConvertsAndReshards) {
  const TempDir dir;
  save_sample(dir / "a", 1);
  const std::string a = (dir / "a").string();
  const std::string file = (dir / "m.safetensors").string();
  const auto refused = run_cli({"checkpoint", "convert", a, file});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("step is not a tensor"), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("--tensors-only"), std::string::npos) << refused.err;
  EXPECT_EQ(run_cli({"checkpoint", "verify", (dir / "none").string()}).exit_code, 2);
  EXPECT_EQ(run_cli({"checkpoint", "convert", a, file, "--tensors-only"}).exit_code, 0);
  const auto found = run_cli({"checkpoint", "diff", a, file});
  EXPECT_EQ(found.out, "step  only in the first\n");
  EXPECT_EQ(run_cli({"checkpoint", "convert", file, (dir / "back").string()}).exit_code, 0);
  EXPECT_EQ(run_cli({"checkpoint", "diff", file, (dir / "back").string()}).exit_code, 0);
  const std::string parts = (dir / "parts").string();
  EXPECT_EQ(run_cli({"checkpoint", "reshard", a, parts, "-n", "3"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(dir / "parts/__2_0.distcp"));
  EXPECT_EQ(run_cli({"checkpoint", "diff", a, parts}).out, "no difference\n");
}

/// The examples of a help text, as words.
std::vector<std::vector<std::string>> examples_in(const std::string& help) {
  std::vector<std::vector<std::string>> out;
  std::istringstream lines(help.substr(std::min(help.find("Examples"), help.size())));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    if (!(words >> word) || word != "tessera") continue;
    out.emplace_back();
    while (words >> word) out.back().push_back(word);
  }
  return out;
}

TEST(CheckpointVerb, TheExamplesOfEachHelpRun) {
  const TempDir dir;
  save_sample(dir / "step_100", 1);
  save_sample(dir / "step_200", 1.5);
  const auto in_dir = [&](const std::string& word) {
    const bool is_path = word.starts_with("step_") || word == "parts" || word.ends_with("tensors");
    return is_path ? (dir / word).string() : word;
  };
  ASSERT_EQ(run_cli({"checkpoint", "convert", in_dir("step_100"), in_dir("model.safetensors"),
                     "--tensors-only"})
                .exit_code,
            0);
  for (const std::string verb : {"inspect", "verify", "diff", "convert", "reshard"}) {
    const auto help = run_cli({"checkpoint", verb, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_NE(help.out.find("Exit codes: 0 "), std::string::npos) << help.out;
    const auto examples = examples_in(help.out);
    EXPECT_FALSE(examples.empty()) << help.out;
    for (std::vector<std::string> words : examples) {
      std::ranges::transform(words, words.begin(), in_dir);
      ASSERT_EQ(words[1], verb);
      const auto ran = run_cli(words);
      EXPECT_EQ(ran.exit_code, verb == "diff" ? 1 : 0)
          << ::testing::PrintToString(words) << ran.err;
    }
  }
}

}  // namespace checkpoint_test
}  // namespace tessera
