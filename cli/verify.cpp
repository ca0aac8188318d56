#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/compare_tensors.h"
#include "cli/computed_types.h"
#include "cli/input_error.h"
#include "cli/program_job.h"
#include "cli/random_inputs.h"
#include "cli/verbs.h"
#include "tessera/base/errors.h"
#include "tessera/base/progress_bar.h"
#include "tessera/partition/graph/written_values.h"
#include "tessera/program/archive.h"

/// tessera verify M.pt2 DIR: compares the results of the sharded program with those of the whole
/// one.
namespace tessera::cli {
namespace {

constexpr const char* kVerifyFooter = R"(
Runs the whole program in this process and the sharded one on as many processes as it was made for,
both on the same inputs, and compares every output. The difference that counts is the largest one
over the largest value of the output: at most 1e-10 for f64, 1e-4 for f32, 2e-2 for shorter floats,
none for integers. The type that counts is the shortest one that the output was computed in. A
program that updates buffers runs twice, so that the second run reads what the first has written.

Examples
  tessera verify model.pt2 model_tp4
  tessera verify model.pt2 model_tp4 --inputs in.safetensors --tolerance 1e-5 --json
Exit codes: 0 equal, 1 an output differs, 2 the call, a program or the inputs are wrong.)";

struct VerifyOptions {
  std::string whole;
  std::string sharded;
  std::string inputs;
  uint64_t seed = 0;
  std::optional<double> tolerance;
  std::optional<int> repeat;
  std::string device;
  bool json = false;
};

nlohmann::ordered_json to_json(const VerifyOptions& options, const ProgramTarget& target,
                               const std::vector<Difference>& differences, bool ok) {
  nlohmann::ordered_json outputs = nlohmann::ordered_json::array();
  for (const auto& one : differences) {
    outputs.push_back({{"name", one.name},
                       {"dtype", one.dtype},
                       {"shape", one.shape},
                       {"largest_difference", one.largest},
                       {"relative", one.relative},
                       {"allowed", one.allowed},
                       {"problem", one.problem},
                       {"ok", one.ok()}});
  }
  return {{"program", options.whole},
          {"sharded", options.sharded},
          {"ranks", target.ranks},
          {"ok", ok},
          {"outputs", outputs}};
}

std::string number_text(double number) {
  std::ostringstream out;
  out.precision(3);
  out << number;
  return out.str();
}

void print_verify(const VerifyOptions& options, const ProgramTarget& target,
                  const std::vector<Difference>& differences, bool ok) {
  std::vector<std::vector<std::string>> rows = {
      {"output", "type", "shape", "difference", "relative", "allowed", ""}};
  for (const auto& one : differences) {
    rows.push_back({one.name, one.dtype, one.shape, number_text(one.largest),
                    number_text(one.relative), number_text(one.allowed),
                    !one.problem.empty() ? one.problem
                    : one.ok()           ? "equal"
                                         : "differs"});
  }
  std::cout << table_text(rows) << options.sharded << " on " << target.ranks << " ranks "
            << (ok ? "computes what " : "does not compute what ") << options.whole << " does\n";
}

void check_same_inputs(const VerifyOptions& options, const NamedTensors& whole,
                       const std::vector<partition::ManifestTensor>& sharded) {
  for (const auto& input : sharded) {
    const bool known = std::ranges::count(whole, input.name, &NamedTensors::value_type::first) > 0;
    require(known, options.sharded, " takes ", input.name, ", which ", options.whole,
            " does not: it was made of another program");
  }
}

bool updates_tensors(const program::ExportedProgram& program) {
  const auto written = partition::find_written(program, {});
  return !written.updates.empty() ||
         std::ranges::find(written.whole_only, true) != written.whole_only.end() ||
         std::ranges::find(written.is_state, true) != written.is_state.end();
}

void run_verify(const VerifyOptions& options) {
  const auto whole = ProgramTarget::find(options.whole, std::nullopt);
  const auto sharded = ProgramTarget::find(options.sharded, std::nullopt);
  require(!whole.manifest, options.whole, " is sharded itself; name the whole program first");
  whole.check_contents();
  sharded.check_contents();
  const ScratchDir scratch;
  const auto program = program::Archive::open(whole.path)->read_program();
  const int repeat = options.repeat.value_or(updates_tensors(program) ? 2 : 1);
  std::filesystem::path inputs = options.inputs;
  if (options.inputs.empty()) {
    inputs = scratch.file("inputs.safetensors");
    const NamedTensors generated = random_inputs(program, options.seed);
    if (sharded.manifest) check_same_inputs(options, generated, sharded.manifest->inputs);
    write_tensors(inputs, generated);
  }
  std::vector<Difference> differences;
  {
    ProgressBar bar("verifying");
    bar.show_count(0, 3, "steps");
    const auto expected =
        run_job({whole, inputs, scratch.file("whole.safetensors"), options.device, repeat});
    bar.show_count(1, 3, "steps: the whole program has run");
    const auto found =
        run_job({sharded, inputs, scratch.file("sharded.safetensors"), options.device, repeat});
    bar.show_count(2, 3, "steps: both have run");
    differences = compare_tensors(found.outputs, expected.outputs, computed_types(program),
                                  options.tolerance);
  }
  const bool ok = std::ranges::all_of(differences, &Difference::ok);
  if (options.json) {
    std::cout << to_json(options, sharded, differences, ok).dump(2) << "\n";
  } else {
    print_verify(options, sharded, differences, ok);
  }
  std::cout.flush();
  if (!ok) throw ExitWith{1};
}

}  // namespace

void add_verify(CLI::App& app) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* verb = app.add_subcommand(
      "verify", "Runs a program whole and sharded, and compares what they compute");
  verb->add_option("program", options->whole, "the whole program: M.pt2")->required();
  verb->add_option("sharded", options->sharded, "the directory or file that tessera shard made")
      ->required();
  verb->add_option("--inputs", options->inputs, "a safetensors file; default: generated inputs");
  verb->add_option("--random", options->seed, "seed of generated inputs")->capture_default_str();
  verb->add_option("--tolerance", options->tolerance, "relative difference that is allowed")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--repeat", options->repeat,
                   "run both this many times, and compare the last; default: 1, or 2 for a program "
                   "that updates buffers")
      ->check(CLI::Range(1, 1 << 30, "POSITIVE"));
  verb->add_option("--device", options->device, "cpu or cuda; default: as exported");
  verb->add_flag("--json", options->json, "machine-readable output");
  verb->footer(kVerifyFooter);
  verb->callback([options] { as_input_error([&] { run_verify(*options); }); });
}

}  // namespace tessera::cli
