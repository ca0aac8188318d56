#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/plan_argument.h"
#include "cli/progress_bar.h"
#include "cli/verbs.h"
#include "tessera/base/errors.h"
#include "tessera/files/output_file.h"
#include "tessera/partition/explain_program.h"
#include "tessera/partition/partition.h"

/// tessera shard M.pt2 --mesh tp=4 -o DIR: a program for each rank.
namespace tessera::cli {
namespace {

constexpr const char* kFooter = R"(
Writes DIR/rank_0.pt2, ... and DIR/manifest.json: programs that tessera run and torch.export.load
read. DIR appears when it is complete. User inputs and results are whole on every rank unless the
plan says otherwise.

A plan names modules, with * for one part of a name:
  {"modules": {"layers.*.mlp.up": "colwise", "layers.*.mlp.down": "rowwise",
               "embed": "vocabulary"},
   "rest": "auto"}
Styles: colwise, rowwise, vocabulary, sequence, replicate. "weights", "values", "inputs" and
"outputs" give placements by name: {"inputs": {"tokens": "S0"}}. Without --plan, weights are cut
where that is cheapest.

Examples
  tessera shard llama.pt2 --mesh tp=4 -o llama_tp4
  tessera shard llama.pt2 --mesh dp=2,tp=2 --plan plan.json -o llama_4 --overwrite
  tessera shard llama.pt2 --mesh tp=4 -o llama_tp4 --plan-out plan.json    # to edit and give back
Exit codes: 0 written, 1 the disk failed, 2 the program, mesh or plan is wrong.)";

struct Options {
  std::string program;
  std::string mesh;
  std::string plan = "auto";
  std::string directory;
  std::string plan_out;
  bool overwrite = false;
  bool json = false;
};

std::string join(const std::filesystem::path& directory, const std::string& file) {
  return (directory / file).string();
}

void print(const Options& options, const partition::PartitionedProgram& program,
           const partition::ProgramExplanation& explanation) {
  std::cout << explanation.source << " for " << explanation.mesh << "\n";
  std::vector<std::vector<std::string>> rows;
  for (const auto& rank : partition::Manifest::read(options.directory).ranks) {
    const std::string file = join(options.directory, rank.file);
    rows.push_back(
        {"  " + file, bytes_text(static_cast<int64_t>(std::filesystem::file_size(file)))});
  }
  std::cout << table_text(rows) << "weights cut\n";
  rows.clear();
  for (const auto& w : explanation.weights) {
    if (w.placements.find('S') == std::string::npos) continue;
    rows.push_back({"  " + w.name, w.type, w.placements, bytes_text(w.local_bytes) + " a rank"});
  }
  std::cout << (rows.empty() ? std::string("  none\n") : table_text(rows));
  const auto& totals = program.assignment().totals;
  std::cout << "collectives: " << explanation.collectives_text() << "; a rank sends "
            << bytes_text(totals.comm_bytes) << " a run\n";
  for (const auto& line : explanation.must_divide) std::cout << line << "\n";
}

void run(const Options& options) {
  const partition::Plan plan = read_plan(options.plan);
  const DeviceMesh mesh = DeviceMesh::parse(options.mesh);
  const auto program = partition::partition(options.program, mesh, plan);
  {
    ProgressBar bar("writing");
    program.save(options.directory, {.overwrite = options.overwrite,
                                     .progress = [&](const partition::WriteProgress& progress) {
                                       bar.show(progress.bytes, progress.total);
                                     }});
  }
  if (!options.plan_out.empty()) {
    files::OutputFile file(options.plan_out);
    file.write(partition::plan_of(program.program(), program.assignment()).to_json());
    file.close();
  }
  const auto explanation =
      partition::explain_program(program.program(), program.assignment(),
                                 std::filesystem::path(options.program).filename().string(),
                                 cost::default_machine(mesh.device()));
  if (!options.json) return print(options, program, explanation);
  auto json = nlohmann::ordered_json::parse(explanation.to_json());
  json.erase("nodes");
  json["directory"] = options.directory;
  json["manifest"] =
      nlohmann::ordered_json::parse(partition::Manifest::read(options.directory).to_json());
  std::cout << json.dump(2) << "\n";
}

}  // namespace

void add_shard(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* verb =
      app.add_subcommand("shard", "Cuts an exported program into programs for the ranks of a mesh");
  verb->add_option("program", options->program, "M.pt2, written by torch.export.save")->required();
  verb->add_option("--mesh", options->mesh, "as tp=4 or dp=2,tp=4")->required();
  verb->add_option("--plan", options->plan, "a file of JSON, or auto")->capture_default_str();
  verb->add_option("-o,--output", options->directory, "the directory to write")->required();
  verb->add_option("--plan-out", options->plan_out, "also write what was chosen as a plan");
  verb->add_flag("--overwrite", options->overwrite, "replace a directory that shard wrote before");
  verb->add_flag("--json", options->json, "machine-readable output");
  verb->footer(kFooter);
  verb->callback([options] { with_bad_input_errors([&] { run(*options); }); });
}

}  // namespace tessera::cli
