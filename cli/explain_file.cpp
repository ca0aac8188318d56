#include "cli/explain_file.h"

#include <filesystem>
#include <iostream>

#include "cli/input_error.h"
#include "cli/output_path.h"
#include "cli/plan_argument.h"
#include "tessera/base/errors.h"
#include "tessera/files/output_file.h"
#include "tessera/partition/explain_program.h"
#include "tessera/partition/partition.h"

namespace tessera::cli {

bool is_program_file(const std::string& word) { return word.ends_with(".pt2"); }

void explain_file(const ExplainFileOptions& options) {
  const std::string& file = options.choose.program;
  require(!options.choose.mesh.empty(), "explain ", file, ": give a mesh, --mesh tp=4");
  if (!options.html.empty()) check_output_directory(options.html);
  as_input_error([&] {
    const ChosenShardings chosen = choose_shardings(options.choose);
    const auto& program = chosen.program;
    const auto explanation = partition::explain_program(
        program.program(), program.assignment(), std::filesystem::path(file).filename().string(),
        cost::default_machine(program.mesh().device()));
    if (!options.html.empty()) {
      files::OutputFile page(options.html);
      page.write(explanation.to_html());
      page.close();
    }
    std::cout << (options.json ? explanation.to_json() : explanation.to_text());
    if (chosen.found && !options.json) std::cout << chosen.found->to_text();
    if (!options.html.empty() && !options.json) std::cout << "page: " << options.html << "\n";
  });
}

}  // namespace tessera::cli
