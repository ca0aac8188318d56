#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "cli/printable.h"
#include "cli/verbs.h"
#include "tessera/base/errors.h"

namespace {

constexpr int kFailed = 1;
constexpr int kWrongCall = 2;

int fail(const char* what, int code) {
  std::cerr << "tessera: " << tessera::cli::printable_lines(what) << "\n";
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Distributed tensors on libtorch.", "tessera");
  app.set_version_flag("--version", TESSERA_VERSION);
  app.require_subcommand(1);
  for (const auto add : tessera::cli::kVerbs) add(app);
  try {
    app.parse(argc, argv);
    std::cout.flush();
    return std::cout ? 0 : fail("the output could not be written", kFailed);
  } catch (const CLI::Success& help) {  // --help, --version
    return app.exit(help);
  } catch (const tessera::cli::ExitWith& end) {
    return end.code;
  } catch (const CLI::ParseError& error) {
    const auto verbs = app.get_subcommands();
    const bool unknown = verbs.empty() && argc > 1 && argv[1][0] != '-';
    std::cerr << "tessera: "
              << (unknown ? argv[1] + std::string(" is not a subcommand") : error.what()) << "\n\n";
    std::cerr << (verbs.empty() ? app.help() : verbs.front()->help("tessera"));
    return kWrongCall;
  } catch (const tessera::InvalidArgument& error) {
    return fail(error.what(), kWrongCall);
  } catch (const std::exception& error) {
    return fail(error.what(), kFailed);
  }
}
