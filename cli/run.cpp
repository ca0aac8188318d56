#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/input_error.h"
#include "cli/output_path.h"
#include "cli/program_job.h"
#include "cli/random_inputs.h"
#include "cli/verbs.h"
#include "tessera/base/errors.h"
#include "tessera/program/archive.h"

/// tessera run M.pt2 | DIR: runs an exported program, sharded or not, on its inputs.
namespace tessera::cli {
namespace {

constexpr const char* kRunFooter = R"(
A tensor of the inputs file goes to the program's input of the same name (tessera inspect lists
them); what tessera shard wrote, a directory or a file, runs on as many processes as it was sharded
for. Inputs and outputs are whole tensors in both cases.

Examples
  tessera run model.pt2 --inputs in.safetensors -o out.safetensors
  tessera run model_tp4 --random 0 -o out.safetensors
  tessera run model.pt2 --random 0 --repeat 20 --json
Exit codes: 0 done, 1 it failed while it ran, 2 the call, the program or the inputs are wrong.)";

struct RunOptions {
  std::string path;
  std::optional<int> ranks;
  std::string inputs;
  std::optional<uint64_t> seed;
  std::string output;
  std::string device;
  int repeat = 1;
  bool as_rank = false;
  bool json = false;
};

/// The range of a tensor's values, for a table: "-1.25 to 3".
std::string range_text(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return "empty";
  if (tensor.is_complex()) return "complex";
  const at::Tensor wide = tensor.to(at::kDouble);
  std::ostringstream out;
  out << wide.min().item<double>() << " to " << wide.max().item<double>();
  return out.str();
}

nlohmann::ordered_json to_json(const RunOptions& options, const ProgramTarget& target,
                               const ProgramRun& run) {
  nlohmann::ordered_json outputs = nlohmann::ordered_json::array();
  for (const auto& [name, tensor] : run.outputs) {
    outputs.push_back(
        {{"name", name}, {"dtype", dtype_text(tensor)}, {"shape", tensor.sizes().vec()}});
  }
  return {{"program", options.path}, {"ranks", target.ranks},    {"load_s", run.load_s},
          {"run_s", run.run_s},      {"output", options.output}, {"outputs", outputs}};
}

void print_run(const RunOptions& options, const ProgramTarget& target, const ProgramRun& run) {
  std::vector<std::vector<std::string>> rows = {{"output", "type", "shape", "values"}};
  for (const auto& [name, tensor] : run.outputs) {
    rows.push_back({name, dtype_text(tensor), sizes_text(tensor), range_text(tensor)});
  }
  std::cout << table_text(rows) << options.path << " on " << target.ranks
            << (target.ranks == 1 ? " rank" : " ranks") << ": loaded in " << run.load_s * 1e3
            << " ms, ran in " << run.run_s * 1e3 << " ms\n";
  if (!options.output.empty()) std::cout << "written to " << options.output << "\n";
}

NamedTensors generate(const ProgramTarget& target, uint64_t seed) {
  const auto program = target.a_program();
  return target.manifest ? random_inputs(*target.manifest, program, seed)
                         : random_inputs(program, seed);
}

void run_run(const RunOptions& options) {
  const auto target = ProgramTarget::find(options.path, options.ranks);
  if (options.as_rank) {
    return run_as_rank({target, options.inputs, options.output, options.device, options.repeat});
  }
  require(options.inputs.empty() != !options.seed.has_value(),
          "run: give --inputs FILE or --random SEED, one of them");
  if (!options.output.empty()) check_replaceable(options.output);
  target.check_contents();
  const ScratchDir scratch;
  ProgramJob job{target, options.inputs, options.output, options.device, options.repeat};
  if (options.seed) {
    job.inputs = scratch.file("inputs.safetensors");
    write_tensors(job.inputs, generate(target, *options.seed));
  }
  if (options.output.empty()) job.outputs = scratch.file("outputs.safetensors");
  const ProgramRun run = run_job(job);
  if (options.json) {
    std::cout << to_json(options, target, run).dump(2) << "\n";
  } else {
    print_run(options, target, run);
  }
}

}  // namespace

void add_run(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* verb = app.add_subcommand("run", "Runs an exported program, sharded or not");
  verb->add_option("program", options->path, "M.pt2, or what tessera shard wrote")->required();
  verb->add_option("-n,--ranks", options->ranks,
                   "processes; default: as many as it was sharded for, 1 for a .pt2")
      ->check(CLI::Range(1, 1 << 20, "POSITIVE"));
  verb->add_option("--inputs", options->inputs, "a safetensors file: a tensor for each input");
  verb->add_option("--random", options->seed, "generate the inputs from this seed");
  verb->add_option("-o,--output", options->output, "write the outputs to this safetensors file");
  verb->add_option("--device", options->device, "cpu or cuda; default: as exported");
  verb->add_option("--repeat", options->repeat, "run this many times; the last one is reported")
      ->check(CLI::Range(1, 1 << 30, "POSITIVE"))
      ->capture_default_str();
  verb->add_flag("--json", options->json, "machine-readable output");
  verb->add_flag("--as-rank", options->as_rank)->group("");  // used by run to start its own ranks
  verb->footer(kRunFooter);
  verb->callback([options] { as_input_error([&] { run_run(*options); }); });
}

}  // namespace tessera::cli
