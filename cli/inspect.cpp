#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/input_error.h"
#include "cli/program_job.h"
#include "cli/program_summary.h"
#include "cli/verbs.h"
#include "tessera/base/errors.h"

/// tessera inspect M.pt2 | DIR: the contents of an exported program.
namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

constexpr const char* kInspectFooter = R"(
The program is read and checked as for a run, but not run: order of its nodes, signature, weights,
and every node against its operator's schema. What tessera shard wrote is shown with its mesh, the
programs of its ranks and how it takes and gives tensors.

Examples
  tessera inspect model.pt2
  tessera inspect model.pt2 --weights
  tessera inspect model_tp4 --json
Exit codes: 0 sound, 2 it is not, or cannot be read.)";

constexpr size_t kMostOps = 12;

struct InspectOptions {
  std::string path;
  bool weights = false;
  bool json = false;
};

Json to_json(const ProgramSummary& summary) {
  const auto tensors = [](const std::vector<ProgramSummary::Tensor>& list) {
    Json out = Json::array();
    for (const auto& one : list) out.push_back({{"name", one.name}, {"type", one.type}});
    return out;
  };
  Json weights = Json::array();
  for (const auto& w : summary.weights) {
    weights.push_back({{"name", w.name},
                       {"kind", w.kind},
                       {"type", w.type},
                       {"bytes", w.bytes},
                       {"tied_to", w.tied_to.empty() ? Json() : Json(w.tied_to)}});
  }
  Json ops = Json::object();
  for (const auto& op : summary.ops) ops[op.name] = op.count;
  return {{"torch_version", summary.torch_version},
          {"form", summary.form},
          {"inputs", tensors(summary.inputs)},
          {"outputs", tensors(summary.outputs)},
          {"symbols", tensors(summary.symbols)},
          {"nodes", summary.nodes},
          {"ops", ops},
          {"collectives", summary.collectives_of},
          {"parameters", summary.parameters},
          {"weight_bytes", summary.weight_bytes},
          {"file_bytes", summary.file_bytes},
          {"weights", weights},
          {"not_runnable", summary.not_runnable.empty() ? Json() : Json(summary.not_runnable)}};
}

Json to_json(const partition::Manifest& manifest, const std::filesystem::path& directory) {
  Json out = Json::parse(manifest.to_json());
  if (std::filesystem::is_regular_file(directory)) {
    out["bytes"] = std::filesystem::file_size(directory);
  }
  for (auto& rank : out["ranks"]) {
    if (!rank.contains("file")) continue;  // all are in one
    rank["bytes"] = std::filesystem::file_size(directory / rank["file"].get<std::string>());
  }
  return out;
}

void print_tensors(const std::string& title, const std::vector<ProgramSummary::Tensor>& tensors) {
  if (tensors.empty()) return;
  Rows rows;
  for (const auto& one : tensors) rows.push_back({"  " + one.name, one.type});
  std::cout << title << "\n" << table_text(rows);
}

void print_weights(const ProgramSummary& summary) {
  Rows rows;
  for (const auto& w : summary.weights) {
    rows.push_back(
        {"  " + w.name, w.kind, w.type,
         w.tied_to.empty() ? bytes_text(static_cast<int64_t>(w.bytes)) : "as " + w.tied_to});
  }
  std::cout << "weights\n" << table_text(rows);
}

void print_inspect(const InspectOptions& options, const ProgramSummary& summary) {
  std::cout << options.path << ": " << bytes_text(static_cast<int64_t>(summary.file_bytes))
            << ", torch " << summary.torch_version << ", " << summary.form << "\n";
  print_tensors("inputs", summary.inputs);
  print_tensors("outputs", summary.outputs);
  print_tensors("dynamic sizes", summary.symbols);
  std::cout << "parameters\n  " << summary.parameters << " elements, weights and constants of "
            << bytes_text(static_cast<int64_t>(summary.weight_bytes)) << " in "
            << summary.weights.size() << " tensors\n";
  Rows rows;
  int rest = 0;
  for (size_t i = 0; i < summary.ops.size(); ++i) {
    if (i < kMostOps) {
      rows.push_back({"  " + summary.ops[i].name, std::to_string(summary.ops[i].count)});
    } else {
      rest += summary.ops[i].count;
    }
  }
  if (rest > 0) rows.push_back({"  others", std::to_string(rest)});
  std::cout << "ops, " << summary.nodes << " nodes\n" << table_text(rows);
  for (const auto& [group, count] : summary.collectives_of) {
    std::cout << "collectives on group " << group << ": " << count << "\n";
  }
  if (options.weights) print_weights(summary);
  if (!summary.not_runnable.empty()) {
    std::cout << "this library cannot run it: " << summary.not_runnable << "\n";
  }
}

void print_inspect(const InspectOptions& options, const partition::Manifest& manifest) {
  std::cout << options.path << ": " << manifest.source << " sharded for "
            << manifest.mesh.to_text();
  if (std::filesystem::is_regular_file(options.path)) {
    const auto bytes = std::filesystem::file_size(options.path);
    std::cout << ", " << bytes_text(static_cast<int64_t>(bytes));
  }
  std::cout << "\n";
  Rows files;
  for (const auto& rank : manifest.ranks) {
    if (rank.file.empty()) {
      files.push_back({"  " + std::to_string(rank.rank), rank.model});
      continue;
    }
    const auto bytes = std::filesystem::file_size(rank.file_in(options.path));
    files.push_back(
        {"  " + std::to_string(rank.rank), rank.file, bytes_text(static_cast<int64_t>(bytes))});
  }
  std::cout << "ranks\n" << table_text(files);
  const auto show = [](const char* title, const std::vector<partition::ManifestTensor>& tensors) {
    Rows rows;
    for (const auto& t : tensors) {
      rows.push_back({"  " + t.name, std::string(dtype_name(t.dtype)), shape_text(t.shape),
                      placements_text(t.placements)});
    }
    std::cout << title << " (-1: any size)\n" << table_text(rows);
  };
  show("inputs", manifest.inputs);
  show("outputs", manifest.outputs);
}

void run_inspect(const InspectOptions& options) {
  const auto target = ProgramTarget::find(options.path, std::nullopt);
  target.check_contents();
  if (target.manifest) {
    target.check_ranks();
    if (options.json) {
      std::cout << to_json(*target.manifest, target.path).dump(2) << "\n";
    } else {
      print_inspect(options, *target.manifest);
    }
    return;
  }
  const ProgramSummary summary = summarize(*program::Archive::open(options.path));
  if (options.json) {
    std::cout << to_json(summary).dump(2) << "\n";
  } else {
    print_inspect(options, summary);
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* verb = app.add_subcommand(
      "inspect", "What an exported program takes, gives, holds and computes; checks it");
  verb->add_option("program", options->path, "M.pt2, or what tessera shard wrote")->required();
  verb->add_flag("--weights", options->weights, "also list every parameter, buffer and constant");
  verb->add_flag("--json", options->json, "machine-readable output");
  verb->footer(kInspectFooter);
  verb->callback([options] { as_input_error([&] { run_inspect(*options); }); });
}

}  // namespace tessera::cli
