#pragma once

#include <array>

namespace CLI {
class App;
}

/// The verbs of the command line: one file each, which adds its subcommand to the app. A verb's
/// callback prints its result to stdout and throws what goes wrong; main.cpp turns that into a
/// message on stderr and an exit code.
///
///   0  done        1  it failed        2  the call was wrong        (launch: as its ranks ended)
namespace tessera::cli {

/// Thrown by a verb that has said all there is to say: the program ends with this code.
struct ExitWith {
  int code;
};

void add_explain(CLI::App& app);
void add_inspect(CLI::App& app);
void add_launch(CLI::App& app);
void add_run(CLI::App& app);
void add_shard(CLI::App& app);
void add_verify(CLI::App& app);

inline constexpr std::array kVerbs = {&add_inspect, &add_shard,   &add_run,
                                      &add_verify,  &add_explain, &add_launch};

}  // namespace tessera::cli
