#include "tests/cli/launched.h"

namespace tessera::test {
namespace launch_stdin_test {

/// What `command | tessera launch <words>` prints, and how it ends.
CliResult piped(const Folder& folder, const std::string& command, const std::string& words) {
  const std::string out = folder.file("out");
  const int status = std::system(
      (command + " | " + TESSERA_CLI + " launch " + words + " >" + out + " 2>" + folder.file("err"))
          .c_str());
  return {WEXITSTATUS(status), content(out), content(folder.file("err"))};
}

TEST(CliLaunchStdin, GoesToRankZero) {
  const Folder folder;
  const std::string script = folder.script("echo \"$RANK: $(wc -c)\"");
  const CliResult result = piped(folder, "head -c 300000 /dev/zero",
                                 "-n 2 --stdin " + script);  // more than a pipe holds
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(holds(result.out, "[0] 0: 300000\n")) << result.out;
  EXPECT_TRUE(holds(result.out, "[1] 1: 0\n")) << result.out;
}

TEST(CliLaunchStdin, IsEmptyWithoutTheOption) {
  const Folder folder;
  const std::string script = folder.script("echo \"$RANK: $(wc -c)\"");
  EXPECT_TRUE(holds(piped(folder, "echo text", "-n 1 " + script).out, "[0] 0: 0\n"));
}

TEST(CliLaunchStdin, ARankThatDoesNotReadEndsTheJobAllTheSame) {
  const Folder folder;
  const CliResult result =
      piped(folder, "yes | head -c 3000000", "-n 1 --stdin " + folder.script("exec <&-; exit 3"));
  EXPECT_EQ(result.exit_code, 3) << result.err;
}

}  // namespace launch_stdin_test
}  // namespace tessera::test
