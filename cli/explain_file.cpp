#include "cli/explain_file.h"

#include <filesystem>
#include <iostream>

#include "cli/plan_argument.h"
#include "tessera/base/errors.h"
#include "tessera/files/output_file.h"
#include "tessera/partition/explain_program.h"
#include "tessera/partition/partition.h"

namespace tessera::cli {

bool is_program_file(const std::string& word) { return word.ends_with(".pt2"); }

void explain_file(const ExplainFileOptions& options) {
  require(!options.mesh.empty(), "explain ", options.program, ": give a mesh, --mesh tp=4");
  with_bad_input_errors([&] {
    const DeviceMesh mesh = DeviceMesh::parse(options.mesh);
    const auto program = partition::partition(options.program, mesh, read_plan(options.plan));
    const auto explanation =
        partition::explain_program(program.program(), program.assignment(),
                                   std::filesystem::path(options.program).filename().string(),
                                   cost::default_machine(mesh.device()));
    if (!options.html.empty()) {
      files::OutputFile page(options.html);
      page.write(explanation.to_html());
      page.close();
    }
    std::cout << (options.json ? explanation.to_json() : explanation.to_text());
    if (!options.html.empty() && !options.json) std::cout << "page: " << options.html << "\n";
  });
}

}  // namespace tessera::cli
