#pragma once

#include <array>

namespace CLI {
class App;
}

/// The verbs of the command line: one file each, which adds its subcommand to the app. A verb's
/// callback prints its result to stdout and throws what goes wrong; main.cpp turns that into a
/// message on stderr and an exit code.
///
///   0  done        1  it failed        2  the call was wrong
namespace tessera::cli {

void add_explain(CLI::App& app);

inline constexpr std::array kVerbs = {&add_explain};

}  // namespace tessera::cli
