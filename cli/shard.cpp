#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/choose_shardings.h"
#include "cli/input_error.h"
#include "cli/output_path.h"
#include "cli/plan_argument.h"
#include "cli/stop_signal.h"
#include "cli/verbs.h"
#include "tessera/base/errors.h"
#include "tessera/base/progress_bar.h"
#include "tessera/files/output_file.h"
#include "tessera/partition/explain_program.h"
#include "tessera/partition/partition.h"

/// tessera shard M.pt2 --mesh tp=4 -o DIR: writes a program per rank.
namespace tessera::cli {
namespace {

constexpr const char* kShardFooter = R"(
Writes DIR/rank_0.pt2, ... and DIR/manifest.json: programs that tessera run and torch.export.load
read. DIR appears when it is complete. With --single-file, the output is one file of all ranks, in
which tensors that ranks hold alike are stored once; torch.export.pt2_archive.load_pt2 reads it.
User inputs and results are whole on every rank unless the plan says otherwise.

A plan names modules, with * for one part of a name:
  {"modules": {"layers.*.mlp.up": "colwise", "layers.*.mlp.down": "rowwise",
               "embed": "vocabulary"},
   "rest": "auto"}
Styles: colwise, rowwise, vocabulary, sequence, replicate. "weights", "values", "inputs" and
"outputs" give placements by name: {"inputs": {"tokens": "S0"}}. Without --plan the cheapest one is
looked for, under the limit of --memory if there is one: what was chosen is shown with what speaks
for it.

Examples
  tessera shard llama.pt2 --mesh tp=4 -o llama_tp4
  tessera shard llama.pt2 --mesh dp=2,tp=2 --plan plan.json -o llama_4 --overwrite
  tessera shard llama.pt2 --mesh tp=4 --memory 30% -o llama_tp4
  tessera shard llama.pt2 --mesh tp=4 -o llama_tp4 --plan-out plan.json    # to edit and give back
  tessera shard llama.pt2 --mesh tp=4 --single-file -o llama_tp4.pt2
Exit codes: 0 written, 1 the disk failed, 2 the program, mesh or plan is wrong, 130 interrupted;
then nothing is left of what was written.)";

struct ShardOptions {
  ShardingOptions choose;
  std::string output;
  std::string plan_out;
  bool overwrite = false;
  bool single_file = false;
  bool json = false;
};

/// Each file once.
std::vector<std::vector<std::string>> file_rows(const std::filesystem::path& output) {
  std::vector<std::vector<std::string>> rows;
  std::set<std::filesystem::path> seen;
  for (const auto& rank : partition::Manifest::read(output).ranks) {
    const auto file = rank.file_in(output);
    if (!seen.insert(file).second) continue;
    rows.push_back(
        {"  " + file.string(), bytes_text(static_cast<int64_t>(std::filesystem::file_size(file)))});
  }
  return rows;
}

void print_shard(const ShardOptions& options, const ChosenShardings& chosen,
                 const partition::ProgramExplanation& explanation) {
  std::cout << explanation.source << " for " << explanation.mesh << "\n";
  std::cout << table_text(file_rows(options.output)) << "sharded weights\n";
  std::vector<std::vector<std::string>> rows;
  for (const auto& w : explanation.weights) {
    if (w.placements.find('S') == std::string::npos) continue;
    rows.push_back({"  " + w.name, w.type, w.placements, bytes_text(w.local_bytes) + " a rank"});
  }
  std::cout << (rows.empty() ? std::string("  none\n") : table_text(rows));
  const auto& totals = chosen.program.assignment().totals;
  std::cout << "collectives: " << explanation.collectives_text() << "; a rank sends "
            << bytes_text(totals.comm_bytes) << " a run\n";
  for (const auto& line : explanation.must_divide) std::cout << line << "\n";
  if (chosen.found) std::cout << chosen.found->to_text();
}

void run_shard(const ShardOptions& options) {
  if (!options.plan_out.empty()) check_output_directory(options.plan_out);
  const ChosenShardings chosen = choose_shardings(options.choose);
  const auto& program = chosen.program;
  {
    ProgressBar bar("writing");
    const StopSignal stop;
    program.save(options.output, {.overwrite = options.overwrite,
                                  .single_file = options.single_file,
                                  .progress = [&](const partition::WriteProgress& progress) {
                                    stop.check();
                                    bar.show(progress.bytes, progress.total);
                                  }});
  }
  if (!options.plan_out.empty()) {
    files::OutputFile file(options.plan_out);
    file.write(chosen.found
                   ? chosen.found->plan.to_json()
                   : partition::plan_of(program.program(), program.assignment()).to_json());
    file.close();
  }
  const auto explanation =
      partition::explain_program(program.program(), program.assignment(),
                                 std::filesystem::path(options.choose.program).filename().string(),
                                 cost::default_machine(program.mesh().device()));
  if (!options.json) return print_shard(options, chosen, explanation);
  auto json = nlohmann::ordered_json::parse(explanation.to_json());
  json.erase("nodes");
  json[options.single_file ? "file" : "directory"] = options.output;
  if (chosen.found) {
    json["gap"] = chosen.found->gap();
    json["next_best"] = {{"differs_in", chosen.found->next_best_differs},
                         {"seconds", chosen.found->next_best.seconds()}};
  }
  json["manifest"] =
      nlohmann::ordered_json::parse(partition::Manifest::read(options.output).to_json());
  std::cout << json.dump(2) << "\n";
}

}  // namespace

void add_shard(CLI::App& app) {
  auto options = std::make_shared<ShardOptions>();
  CLI::App* verb = app.add_subcommand(
      "shard", "Partitions an exported program into programs for the ranks of a mesh");
  verb->add_option("program", options->choose.program, "M.pt2, written by torch.export.save")
      ->required();
  verb->add_option("--mesh", options->choose.mesh, "as tp=4 or dp=2,tp=4")->required();
  verb->add_option("--plan", options->choose.plan, "a file of JSON, or auto")
      ->capture_default_str();
  verb->add_option("--memory", options->choose.memory,
                   "the most that a rank may hold of weights: 64M, 1.5G, 30% of all");
  verb->add_option("-o,--output", options->output, "the directory to write")->required();
  verb->add_flag("--single-file", options->single_file,
                 "write one file of all ranks instead of a directory");
  verb->add_option("--plan-out", options->plan_out, "also write what was chosen as a plan");
  verb->add_flag("--overwrite", options->overwrite, "replace what shard wrote before");
  verb->add_flag("--json", options->json, "machine-readable output");
  verb->footer(kShardFooter);
  verb->callback([options] { as_input_error([&] { run_shard(*options); }); });
}

}  // namespace tessera::cli
