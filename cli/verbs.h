#pragma once

#include <array>

namespace CLI {
class App;
}

/// The subcommands of the command line: one file each, which adds its subcommand to the app. A
/// callback prints its result to stdout and throws on errors; main.cpp converts exceptions to a
/// message on stderr and an exit code.
///
///   0  success     1  failure          2  invalid usage             (launch: as its ranks ended)
namespace tessera::cli {

/// Thrown by a subcommand that has already reported everything: the program exits with this code.
struct ExitWith {
  int code;
};

void add_checkpoint(CLI::App& app);
void add_explain(CLI::App& app);
void add_inspect(CLI::App& app);
void add_launch(CLI::App& app);
void add_run(CLI::App& app);
void add_shard(CLI::App& app);
void add_verify(CLI::App& app);

inline constexpr std::array kVerbs = {&add_inspect,    &add_shard,   &add_run,   &add_verify,
                                      &add_checkpoint, &add_explain, &add_launch};

}  // namespace tessera::cli
