#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/checkpoint/save.h"
#include "tessera/comm/threads.h"
#include "tests/cli/run_cli.h"
#include "tests/support_pure/temp_dir.h"

/// Checkpoints of other people: their names are shown, not executed by the terminal.
namespace tessera {
namespace checkpoint_names_test {

using test::run_cli;
using test::TempDir;

bool has_control_characters(const std::string& text) {
  return std::ranges::any_of(text,
                             [](unsigned char c) { return (c < 0x20 && c != '\n') || c == 0x7F; });
}

void save_names(const std::filesystem::path& path, double value) {
  comm::run_ranks(1, [&](int) {
    save({{"red\x1b[31m", at::full({2}, value)},
          {"two\nlines", at::full({2}, value)},
          {"\xc2\x9b"
           "2J",
           at::full({2}, value)},
          {"gr\xc3\xbc\xc3\x9f", PlainValue("title\x1b]0;x\a")}},
         path);
  });
}

TEST(CheckpointNames, AreShownWithoutControlCharacters) {
  const TempDir dir;
  const std::string one = (dir / "one").string();
  const std::string two = (dir / "two").string();
  save_names(one, 1);
  save_names(two, 2);
  const auto shown = run_cli({"checkpoint", "inspect", one});
  EXPECT_FALSE(has_control_characters(shown.out)) << shown.out;
  for (const std::string part :
       {"red\\x1b[31m", "two\\nlines", "\\xc2\\x9b2J", "gr\xc3\xbc\xc3\x9f"}) {
    EXPECT_NE(shown.out.find(part), std::string::npos) << part << "\n" << shown.out;
  }
  const auto differences = run_cli({"checkpoint", "diff", one, two});
  EXPECT_EQ(differences.exit_code, 1);
  EXPECT_FALSE(has_control_characters(differences.out)) << differences.out;
  EXPECT_EQ(std::ranges::count(differences.out, '\n'), 3) << differences.out;
  const auto refused = run_cli({"checkpoint", "convert", one, two + ".safetensors"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_FALSE(has_control_characters(refused.err)) << refused.err;
  const auto json = nlohmann::json::parse(run_cli({"checkpoint", "inspect", one, "--json"}).out);
  EXPECT_TRUE(json["entries"].contains("two\nlines"));
}

}  // namespace checkpoint_names_test
}  // namespace tessera
