#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/checkpoint_diff.h"
#include "cli/printable.h"
#include "cli/verbs.h"
#include "tessera/base/errors.h"
#include "tessera/base/progress_bar.h"
#include "tessera/base/shape.h"
#include "tessera/checkpoint/copy_stored.h"
#include "tessera/checkpoint/stored/directory.h"
#include "tessera/checkpoint/stored/stored_state.h"

/// tessera checkpoint inspect|verify|diff|convert|reshard: checkpoints without the program that
/// wrote them.
namespace tessera::cli {
namespace {

using checkpoint::open_stored;
using checkpoint::StoredState;
using Json = nlohmann::ordered_json;

constexpr const char* kCheckpointInspectFooter = R"(
Reads the metadata only: names, dtypes, shapes, and the files that hold them.

Examples
  tessera checkpoint inspect step_100
  tessera checkpoint inspect model.safetensors --json
Exit codes: 0 shown, 2 it cannot be read.)";

constexpr const char* kCheckpointVerifyFooter = R"(
Reads every file and compares it with the metadata and, where there are any, with its checksums.

Examples
  tessera checkpoint verify step_100
  tessera checkpoint verify step_100 --json
Exit codes: 0 sound, 1 damaged, 2 it is not there or is not a checkpoint.)";

constexpr const char* kCheckpointDiffFooter = R"(
Compares names, dtypes, shapes and every element; the formats and the number of ranks that wrote
them do not matter.

Examples
  tessera checkpoint diff step_100 step_200
  tessera checkpoint diff step_100 model.safetensors --tolerance 1e-6 --json
Exit codes: 0 equal, 1 they differ, 2 one of them cannot be read.)";

constexpr const char* kCheckpointConvertFooter = R"(
Safetensors hold tensors only: a checkpoint with other values (steps, settings) is converted without
them if --tensors-only says so.

Examples
  tessera checkpoint convert step_100 model.safetensors --tensors-only
  tessera checkpoint convert model.safetensors step_0 --to dcp
Exit codes: 0 written, 1 it cannot be written, 2 it cannot be read or converted.)";

constexpr const char* kCheckpointReshardFooter = R"(
Loading needs no resharding: any number of ranks reads any checkpoint. This is for readers that
expect one file for each of their ranks.

Examples
  tessera checkpoint reshard step_100 parts -n 8
Exit codes: 0 written, 1 it cannot be written, 2 it cannot be read.)";

struct CheckpointOptions {
  std::string path;
  std::string other;
  std::string to = "auto";
  bool json = false;
  bool tensors_only = false;
  int ranks = 1;
  double tolerance = 0;
};

/// Messages quote bytes of damaged files, which need not be UTF-8.
std::string json_text(const Json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

int64_t bytes_of(const dcp::TensorEntry& tensor) {
  return numel_of(tensor.shape) * (tensor.dtype ? dtype_bytes(*tensor.dtype) : 0);
}

std::string stored_dtype_text(const dcp::TensorEntry& tensor) {
  return tensor.dtype ? std::string(dtype_name(*tensor.dtype)) : "?";
}

std::string files_text(const dcp::TensorEntry& tensor) {
  std::set<std::string> files;
  for (const auto& chunk : tensor.chunks) files.insert(chunk.item.file);
  if (files.empty()) return "";
  return files.size() == 1 ? *files.begin()
                           : join_text(*files.begin(), " and ", files.size() - 1, " more");
}

struct Totals {
  int64_t tensors = 0;
  int64_t values = 0;
  int64_t bytes = 0;
};

Totals totals_of(const StoredState& stored) {
  Totals out;
  for (const auto& [name, entry] : stored.metadata().entries) {
    const auto* tensor = std::get_if<dcp::TensorEntry>(&entry);
    (tensor != nullptr ? out.tensors : out.values) += 1;
    if (tensor != nullptr) out.bytes += bytes_of(*tensor);
  }
  return out;
}

/// A value as text; what cannot be read as plain data says why.
std::string value_text(StoredState& stored, const std::string& name, const dcp::ValueEntry& entry) {
  try {
    return stored.read_value(name, entry).to_text();
  } catch (const Error& error) {
    return join_text("unreadable: ", error.what());
  }
}

Json inspect_json(StoredState& stored) {
  Json entries = Json::object();
  for (const auto& [name, entry] : stored.metadata().entries) {
    if (const auto* value = std::get_if<dcp::ValueEntry>(&entry)) {
      entries[name] = {{"value", value_text(stored, name, *value)}};
      continue;
    }
    const auto& tensor = std::get<dcp::TensorEntry>(entry);
    Json chunks = Json::array();
    for (const auto& chunk : tensor.chunks) {
      chunks.push_back({{"begin", chunk.box.begin},
                        {"end", chunk.box.end},
                        {"file", chunk.item.file},
                        {"offset", chunk.item.offset},
                        {"length", chunk.item.length}});
    }
    entries[name] = {{"dtype", stored_dtype_text(tensor)},
                     {"shape", tensor.shape},
                     {"bytes", bytes_of(tensor)},
                     {"chunks", std::move(chunks)}};
  }
  const Totals totals = totals_of(stored);
  return {{"path", stored.path().string()},
          {"format", stored.format()},
          {"checksums", stored.has_checksums()},
          {"tensors", totals.tensors},
          {"values", totals.values},
          {"bytes", totals.bytes},
          {"entries", std::move(entries)}};
}

void inspect(const CheckpointOptions& options) {
  const auto stored = open_stored(options.path, {});
  if (options.json) {
    std::cout << json_text(inspect_json(*stored)) << "\n";
    return;
  }
  std::vector<std::vector<std::string>> rows = {{"name", "type", "shape", "bytes", "chunks", "in"}};
  for (const auto& [name, entry] : stored->metadata().entries) {
    if (const auto* value = std::get_if<dcp::ValueEntry>(&entry)) {
      rows.push_back({printable(name), "value", printable(value_text(*stored, name, *value))});
      continue;
    }
    const auto& tensor = std::get<dcp::TensorEntry>(entry);
    rows.push_back({printable(name), stored_dtype_text(tensor), shape_text(tensor.shape),
                    bytes_text(bytes_of(tensor)), std::to_string(tensor.chunks.size()),
                    printable(files_text(tensor))});
  }
  const Totals totals = totals_of(*stored);
  std::cout << table_text(rows) << "\n"
            << stored->format() << ": " << totals.tensors << " tensors of "
            << bytes_text(totals.bytes) << ", " << totals.values << " values, "
            << (stored->has_checksums() ? "with" : "without") << " checksums\n";
}

void verify(const CheckpointOptions& options) {
  checkpoint::readable_directory(options.path);  // what is not there is not damaged
  std::string wrong;
  Totals totals;
  bool checksums = false;
  try {
    const auto stored = open_stored(options.path, {});
    totals = totals_of(*stored);
    checksums = stored->has_checksums();
    ProgressBar bar("reading");
    stored->verify_all([&](uint64_t bytes, uint64_t total) { bar.show(bytes, total); });
  } catch (const Error& error) {
    wrong = error.what();
  }
  if (options.json) {
    std::cout << json_text({{"path", options.path},
                            {"ok", wrong.empty()},
                            {"error", wrong},
                            {"tensors", totals.tensors},
                            {"bytes", totals.bytes},
                            {"checksums", checksums}})
              << "\n";
  } else if (wrong.empty()) {
    std::cout << options.path << " is whole: " << totals.tensors << " tensors of "
              << bytes_text(totals.bytes) << ", " << totals.values << " values"
              << (checksums ? ", every block has its checksum\n" : ", no file of checksums\n");
  }
  if (wrong.empty()) return;
  if (!options.json) std::cerr << "tessera: " << printable_lines(wrong) << "\n";
  throw ExitWith{1};
}

void diff(const CheckpointOptions& options) {
  const auto a = open_stored(options.path, {});
  const auto b = open_stored(options.other, {});
  std::vector<EntryDifference> differences;
  {
    ProgressBar bar("comparing");
    differences = compare(*a, *b, options.tolerance,
                          [&](uint64_t bytes, uint64_t total) { bar.show(bytes, total); });
  }
  if (options.json) {
    Json list = Json::array();
    for (const auto& one : differences) list.push_back({{"name", one.name}, {"what", one.what}});
    std::cout << json_text(list) << "\n";
  } else {
    std::vector<std::vector<std::string>> rows;
    for (const auto& one : differences) {
      rows.push_back({printable(one.name), printable(one.what)});
    }
    std::cout << (rows.empty() ? "no difference\n" : table_text(rows));
  }
  if (!differences.empty()) throw ExitWith{1};
}

/// Shows how far it is while it lives.
std::function<void(uint64_t, uint64_t)> shown_by(ProgressBar& bar) {
  return [&bar](uint64_t bytes, uint64_t total) { bar.show(bytes, total); };
}

void copy_tensors(StoredState& stored, const std::string& target,
                  const checkpoint::CopyOptions& how) {
  try {
    copy_as_safetensors(stored, target, how);
  } catch (const NotSupported& error) {
    if (how.tensors_only) throw InvalidArgument(error.what());
    throw InvalidArgument(join_text(error.what(), "; --tensors-only leaves out what is none"));
  }
}

void convert(const CheckpointOptions& options) {
  const auto stored = open_stored(options.path, {});
  const std::string to = options.to != "auto" ? options.to
                         : std::filesystem::path(options.other).extension() == ".safetensors" ||
                                 stored->format() != "safetensors"
                             ? "safetensors"
                             : "dcp";
  {
    ProgressBar bar("writing");
    const checkpoint::CopyOptions how{.tensors_only = options.tensors_only,
                                      .on_progress = shown_by(bar)};
    if (to == "safetensors") {
      copy_tensors(*stored, options.other, how);
    } else {
      copy_as_checkpoint(*stored, options.other, how);
    }
  }
  const Totals totals = totals_of(*stored);
  const int64_t entries = totals.tensors + (options.tensors_only ? 0 : totals.values);
  std::cout << options.other << ": " << entries << " entries as "
            << (to == "dcp" ? "PyTorch distributed checkpoint" : to) << "\n";
}

void reshard(const CheckpointOptions& options) {
  const auto stored = open_stored(options.path, {});
  {
    ProgressBar bar("writing");
    copy_resharded(*stored, options.other, options.ranks, {.on_progress = shown_by(bar)});
  }
  std::cout << options.other << ": in " << options.ranks << " parts\n";
}

CLI::App* add_verb(CLI::App* group, const char* name, const char* what, const char* footer,
                   const std::shared_ptr<CheckpointOptions>& options,
                   void (*run)(const CheckpointOptions&)) {
  CLI::App* verb = group->add_subcommand(name, what);
  verb->add_option("path", options->path, "a checkpoint directory, or safetensors")->required();
  verb->footer(footer);
  verb->callback([options, run] { run(*options); });
  return verb;
}

}  // namespace

void add_checkpoint(CLI::App& app) {
  CLI::App* group = app.add_subcommand(
      "checkpoint",
      "Looks into checkpoints of PyTorch's format and safetensors, and converts them");
  group->require_subcommand(1);
  auto options = std::make_shared<CheckpointOptions>();
  CLI::App* verb =
      add_verb(group, "inspect", "What it holds", kCheckpointInspectFooter, options, inspect);
  verb->add_flag("--json", options->json, "machine-readable, with every chunk");
  verb = add_verb(group, "verify", "Reads and checks every byte; exit code 1 if it is damaged",
                  kCheckpointVerifyFooter, options, verify);
  verb->add_flag("--json", options->json, "machine-readable output");
  verb = add_verb(group, "diff", "What two of them do not have in common; exit code 1 if anything",
                  kCheckpointDiffFooter, options, diff);
  verb->add_option("other", options->other, "the other checkpoint")->required();
  verb->add_option("--tolerance", options->tolerance, "elements may differ by this much")
      ->check(CLI::NonNegativeNumber);
  verb->add_flag("--json", options->json, "machine-readable output");
  verb = add_verb(group, "convert", "Writes it in the other format", kCheckpointConvertFooter,
                  options, convert);
  verb->add_option("target", options->other, "where to")->required();
  verb->add_option("--to", options->to, "dcp or safetensors; by default the other format")
      ->check(CLI::IsMember({"auto", "dcp", "safetensors"}));
  verb->add_flag("--tensors-only", options->tensors_only, "leave out values that are no tensors");
  verb = add_verb(group, "reshard", "Writes it as that many ranks would, each a part of the rows",
                  kCheckpointReshardFooter, options, reshard);
  verb->add_option("target", options->other, "where to")->required();
  verb->add_option("-n,--ranks", options->ranks, "how many")
      ->required()
      ->check(CLI::Range(1, 1024));
}

}  // namespace tessera::cli
