// The verbs on exported programs: inspect, run, verify.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/files/safetensors.h"
#include "tessera/files/zip_reader.h"
#include "tests/cli/run_cli.h"
#include "tests/support/sharded_programs.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera::test {
namespace program_test {

const std::string kLinear = "tests/program/data/linear.pt2";
const std::string kBlock = "tests/program/data/block_dynamic.pt2";

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

nlohmann::json json_of(const std::vector<std::string>& words, int exit_code = 0) {
  const CliResult result = run_cli(words);
  EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
  return nlohmann::json::parse(result.out, nullptr, false);
}

/// stderr of a call that is wrong.
std::string refused(const std::vector<std::string>& words) {
  const CliResult result = run_cli(words);
  EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
  EXPECT_EQ(result.out, "");
  return result.err;
}

TEST(CliInspect, ShowsInputsOutputsOpsAndWeights) {
  const CliResult result = run_cli({"inspect", kBlock, "--weights"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"tokens", "extra.shift", "f32 8", "best.0", "aten::linear",
                           "embed.weight", "as embed.weight", "2 to 128"}) {
    EXPECT_TRUE(holds(result.out, part)) << part << " in\n" << result.out;
  }
  const auto json = json_of({"inspect", kBlock, "--json"});
  EXPECT_EQ(json["inputs"].size(), 2U);
  EXPECT_EQ(json["ops"]["aten::linear"], 4);
  EXPECT_EQ(json["parameters"], 10 * 8 + 8 * 2 + 24 * 8 + 24 + 8 * 8 + 8);
}

TEST(CliInspect, ShowsWhatCannotBeRun) {
  const CliResult result = run_cli({"inspect", "tests/program/data/branch.pt2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(holds(result.out, "cannot run it")) << result.out;
}

/// kLinear with one bit of a record changed.
void write_with_wrong_bit(const std::filesystem::path& to, const std::string& record) {
  const files::ZipReader zip(kLinear);
  std::string bytes = contents_of(kLinear);
  for (const auto& found : zip.records()) {
    if (found.name.ends_with(record)) bytes.at(found.offset + found.size / 2) ^= 1;
  }
  std::ofstream(to, std::ios::binary) << bytes;
}

TEST(CliPrograms, AWrongBitIsFoundByItsChecksum) {
  const TempDir dir;
  const std::string damaged = (dir / "damaged.pt2").string();
  const std::string out = (dir / "out").string();
  for (const char* record : {"weight_0", "models/model.json"}) {
    write_with_wrong_bit(damaged, record);
    for (const std::vector<std::string>& words : {std::vector<std::string>{"inspect", damaged},
                                                  {"run", damaged, "--random", "0"},
                                                  {"shard", damaged, "--mesh", "tp=2", "-o", out},
                                                  {"verify", kLinear, damaged}}) {
      const std::string error = refused(words);
      EXPECT_TRUE(holds(error, record) && holds(error, "is damaged")) << words[0] << ": " << error;
      EXPECT_FALSE(std::filesystem::exists(out));
    }
  }
}

TEST(CliInspect, ShowsAShardedProgram) {
  const TempDir dir;
  write_columns(dir / "linear");
  const CliResult result = run_cli({"inspect", (dir / "linear").string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(holds(result.out, "linear.pt2 sharded for tp=2")) << result.out;
  EXPECT_TRUE(holds(result.out, "rank_1.pt2")) << result.out;
  EXPECT_EQ(json_of({"inspect", (dir / "linear").string(), "--json"})["ranks"].size(), 2U);
}

TEST(CliInspect, RefusesFilesThatAreNoPrograms) {
  const TempDir dir;
  std::ofstream(dir / "text.pt2") << "no program";
  EXPECT_TRUE(holds(refused({"inspect", (dir / "text.pt2").string()}), "text.pt2"));
  EXPECT_TRUE(holds(refused({"inspect", (dir / "none.pt2").string()}), "does not exist"));
  EXPECT_TRUE(holds(refused({"inspect", dir.path().string()}), "manifest.json"));
  std::string whole = contents_of(kLinear);
  std::ofstream(dir / "truncated.pt2") << whole.substr(0, whole.size() / 2);
  EXPECT_TRUE(holds(refused({"inspect", (dir / "truncated.pt2").string()}), "truncated.pt2"));
}

TEST(CliRun, RunsAProgramOnGeneratedInputs) {
  const TempDir dir;
  const std::string out = (dir / "out.safetensors").string();
  const auto json = json_of({"run", kBlock, "--random", "3", "-o", out, "--json"});
  EXPECT_EQ(json["outputs"].size(), 4U);
  const files::SafetensorsFile file(out);
  ASSERT_NE(file.find("logits"), nullptr);
  EXPECT_EQ(file.find("logits")->shape, (std::vector<int64_t>{2, 6, 10}));
  const CliResult table = run_cli({"run", kBlock, "--random", "3", "--repeat", "3"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_TRUE(holds(table.out, "logits") && holds(table.out, "1 rank")) << table.out;
}

TEST(CliRun, AShardedProgramStartsItsRanks) {
  const TempDir dir;
  write_rows(dir / "linear");
  const std::string whole = (dir / "whole.safetensors").string();
  const std::string sharded = (dir / "sharded.safetensors").string();
  EXPECT_EQ(json_of({"run", kLinear, "--random", "1", "-o", whole, "--json"})["ranks"], 1);
  const auto json =
      json_of({"run", (dir / "linear").string(), "--random", "1", "-o", sharded, "--json"});
  EXPECT_EQ(json["ranks"], 2);
  const files::SafetensorsFile a(whole);
  const files::SafetensorsFile b(sharded);
  const auto in_a = a.bytes(*a.find("output"));
  const auto in_b = b.bytes(*b.find("output"));
  ASSERT_EQ(in_a.size(), in_b.size());
  const auto* x = reinterpret_cast<const float*>(in_a.data());
  const auto* y = reinterpret_cast<const float*>(in_b.data());
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(x[i], y[i], 1e-5);
}

TEST(CliRun, TakesTensorsByName) {
  const TempDir dir;
  const std::vector<float> ones(12, 1.0F);
  const auto write = [&](const std::string& name, std::vector<int64_t> shape) {
    files::write_safetensors(
        dir / "in.safetensors",
        {{.name = name,
          .dtype = DType::f32,
          .shape = std::move(shape),
          .write = [&](const auto& sink) { sink(std::as_bytes(std::span<const float>(ones))); }}},
        {});
  };
  const std::string in = (dir / "in.safetensors").string();
  write("input", {4, 3});
  EXPECT_EQ(run_cli({"run", kLinear, "--inputs", in}).exit_code, 0);
  write("x", {4, 3});
  EXPECT_TRUE(holds(refused({"run", kLinear, "--inputs", in}), "has no input x"));
  write("input", {3, 4});
  EXPECT_TRUE(holds(refused({"run", kLinear, "--inputs", in}), "Float 3x4"));
  write_rows(dir / "linear");
  const std::string sharded = (dir / "linear").string();
  EXPECT_TRUE(holds(refused({"run", sharded, "--inputs", in}), "input is 3x4"));
  write("x", {4, 3});
  EXPECT_TRUE(holds(refused({"run", sharded, "--inputs", in}), "has no tensor input"));
}

TEST(CliRun, RefusesWrongCalls) {
  const TempDir dir;
  write_columns(dir / "linear");
  EXPECT_TRUE(holds(refused({"run", kLinear}), "--inputs FILE or --random SEED"));
  EXPECT_TRUE(holds(refused({"run", "tests/program/data/branch.pt2", "--random", "0"}), "cond"));
  EXPECT_TRUE(holds(refused({"run", (dir / "linear").string(), "-n", "3", "--random", "0"}),
                    "sharded for tp=2"));
  EXPECT_TRUE(holds(refused({"run", kLinear, "--inputs", kLinear}), "linear.pt2"));
  EXPECT_TRUE(holds(run_cli({"run", "--help"}).out, "tessera run model_tp4"));
}

TEST(CliRun, ChecksItsOutputBeforeItRuns) {
  const TempDir dir;
  const auto refused_output = [&](const std::filesystem::path& output) {
    return refused({"run", kLinear, "--random", "0", "-o", output.string()});
  };
  EXPECT_TRUE(holds(refused_output(dir / "none" / "out.safetensors"), "there is no directory"));
  EXPECT_TRUE(holds(refused_output(dir.path()), "it is a directory"));
  const auto pipe = dir / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(holds(refused_output(pipe), "not a regular file"));
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));  // a rename would have replaced it
}

TEST(CliVerify, FindsThatTheShardedProgramIsRight) {
  const TempDir dir;
  write_rows(dir / "rows");
  write_columns(dir / "columns");
  for (const char* name : {"rows", "columns"}) {
    const auto json = json_of({"verify", kLinear, (dir / name).string(), "--json"});
    EXPECT_EQ(json["ok"], true);
    EXPECT_LT(json["outputs"][0]["relative"], 1e-5);
  }
}

TEST(CliVerify, FindsADifference) {
  const TempDir dir;
  write_columns(dir / "linear");
  std::filesystem::copy_file(dir / "linear" / "rank_0.pt2", dir / "linear" / "rank_1.pt2",
                             std::filesystem::copy_options::overwrite_existing);
  const CliResult result = run_cli({"verify", kLinear, (dir / "linear").string()});
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  EXPECT_TRUE(holds(result.out, "differs")) << result.out;
  EXPECT_TRUE(holds(result.out, "does not compute")) << result.out;
}

TEST(CliVerify, RefusesWhatIsNoPair) {
  const TempDir dir;
  write_columns(dir / "linear");
  EXPECT_TRUE(holds(refused({"verify", (dir / "linear").string(), (dir / "linear").string()}),
                    "name the whole program first"));
  EXPECT_TRUE(holds(refused({"verify", kBlock, (dir / "linear").string()}),
                    "takes input, which " + kBlock + " does not"));
  std::filesystem::remove(dir / "linear" / "rank_1.pt2");
  const CliResult missing = run_cli({"verify", kLinear, (dir / "linear").string()});
  EXPECT_EQ(missing.exit_code, 2) << missing.err;
  EXPECT_TRUE(holds(missing.err, "rank_1.pt2")) << missing.err;
}

}  // namespace program_test
}  // namespace tessera::test
