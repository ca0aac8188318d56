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

void add_checkpoint(CLI::App& app);
void add_explain(CLI::App& app);
void add_launch(CLI::App& app);

inline constexpr std::array kVerbs = {&add_checkpoint, &add_explain, &add_launch};

}  // namespace tessera::cli
