#include "tessera/checkpoint/load.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <set>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/agree.h"
#include "tessera/checkpoint/chunks.h"
#include "tessera/checkpoint/renames.h"
#include "tessera/checkpoint/stored/directory.h"
#include "tessera/checkpoint/stored/stored_box.h"
#include "tessera/checkpoint/stored/stored_state.h"
#include "tessera/dcp/check.h"
#include "tessera/dtensor/dtensor.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using checkpoint::StoredState;

constexpr size_t kMostListed = 20;

void append_list(std::string& out, std::string_view title, const std::vector<std::string>& names) {
  if (names.empty()) return;
  out += join_text(out.empty() ? "" : "; ", title);
  for (size_t i = 0; i < names.size() && i < kMostListed; ++i) {
    out += join_text(i > 0 ? ", " : "", names[i]);
  }
  if (names.size() > kMostListed) out += join_text(" and ", names.size() - kMostListed, " more");
}

/// "" if this rank's part of the tensor can be written to, else what to do about it.
std::string write_obstacle(const at::Tensor& tensor) {
  if (!tensor.defined()) return "is an undefined tensor in the state";
  if (tensor.is_meta()) return "is on meta in the state; to_empty it before";
  if (tensor.is_nested() || tensor.layout() != at::kStrided) {
    return "is not a dense tensor in the state";
  }
  if (tensor.is_quantized()) return "is a quantized tensor in the state; load its int_repr";
  const at::Tensor rest = checkpoint::at_rest(tensor);
  if (is_dtensor(rest) && !sharding(rest).mesh().contains_me()) return "";
  const at::Tensor local = is_dtensor(rest) ? to_local(rest) : rest;
  if (at::has_internal_overlap(local) == at::MemOverlap::Yes) {
    return "has elements that share memory in the state, as expand makes them; clone it before";
  }
  if (local.is_inference() && !c10::InferenceMode::is_enabled()) {
    return "is an inference tensor in the state; load in inference mode, or clone it before";
  }
  return "";
}

/// "" if an entry of the checkpoint fits the state's value, else what does not.
std::string mismatch(const std::string& name, const StateValue& value, const dcp::Entry& entry) {
  const auto* stored = std::get_if<dcp::TensorEntry>(&entry);
  const auto* tensor = std::get_if<at::Tensor>(&value);
  if (tensor == nullptr) {
    return stored == nullptr ? "" : join_text(name, " is a tensor in the checkpoint, not a value");
  }
  if (stored == nullptr) return join_text(name, " is a value in the checkpoint, not a tensor");
  if (const auto obstacle = write_obstacle(*tensor); !obstacle.empty()) {
    return join_text(name, " ", obstacle);
  }
  if (!std::ranges::equal(stored->shape, tensor->sizes())) {
    return join_text(name, " is ", shape_text(stored->shape), " in the checkpoint and ",
                     shape_text(tensor->sizes()), " in the state");
  }
  return "";
}

std::string dtype_mismatch(const std::string& name, DType stored, const at::Tensor& tensor) {
  const auto own = static_cast<DType>(tensor.scalar_type());
  if (stored == own) return "";
  return join_text(name, " is ", dtype_name(stored), " in the checkpoint and ", dtype_name(own),
                   " in the state; LoadOptions::cast converts it");
}

/// An entry of the checkpoint under the name that the state has for it.
struct Named {
  std::string stored_name;
  const dcp::Entry* entry;
};
using Entries = std::map<std::string, Named>;

Entries rename_entries(const dcp::Metadata& metadata, const LoadOptions& options) {
  const checkpoint::Renames renames(options.renames);
  Entries out;
  for (const auto& [name, entry] : metadata.entries) {
    const auto [found, added] = out.try_emplace(renames.apply(name), Named{name, &entry});
    require(added, "load: ", found->second.stored_name, " and ", name,
            " of the checkpoint would both become ", found->first);
  }
  return out;
}

LoadReport compare(const State& state, const Entries& entries, const LoadOptions& options) {
  LoadReport report;
  for (const auto& [name, value] : state) {
    const auto found = entries.find(name);
    if (found == entries.end()) {
      report.missing.push_back(name);
      continue;
    }
    const dcp::Entry& entry = *found->second.entry;
    std::string wrong = mismatch(name, value, entry);
    const auto* stored = std::get_if<dcp::TensorEntry>(&entry);
    if (wrong.empty() && stored != nullptr && stored->dtype && !options.cast) {
      wrong =
          dtype_mismatch(name, *stored->dtype, checkpoint::at_rest(std::get<at::Tensor>(value)));
    }
    if (!wrong.empty()) report.mismatched.push_back(std::move(wrong));
  }
  for (const auto& [name, entry] : entries) {
    if (!state.contains(name)) report.unexpected.push_back(name);
  }
  return report;
}

void require_fit(const LoadReport& report, const LoadOptions& options, const fs::path& directory) {
  LoadReport wrong = report;
  if (options.allow_missing) wrong.missing.clear();
  if (options.allow_unexpected) wrong.unexpected.clear();
  require(wrong.empty(), "load: ", directory.string(), " does not fit the state: ", wrong);
}

struct Copy {
  at::Tensor target;
  checkpoint::StoredElements source;
};

/// Bytes that a rank checks and then copies.
class LoadProgress {
 public:
  LoadProgress(const State& state, const LoadOptions& options) : report_(options.on_progress) {
    if (!report_) return;
    for (const auto& [name, value] : state) {
      const auto* tensor = std::get_if<at::Tensor>(&value);
      if (tensor == nullptr || !tensor->defined()) continue;
      for (const auto& box : chunk_list(*tensor)) {
        total_ += 2 * static_cast<uint64_t>(box.numel() * tensor->element_size());
      }
    }
  }

  void add(const at::Tensor& target) {
    if (!report_) return;
    done_ += static_cast<uint64_t>(target.nbytes());
    report_(done_, total_);
  }

 private:
  const std::function<void(uint64_t, uint64_t)>& report_;
  uint64_t total_ = 0;
  uint64_t done_ = 0;
};

/// What this rank takes of one chunk.
struct Part {
  std::string name;  ///< in the checkpoint
  const dcp::Chunk* chunk;
  Box box;
  at::Tensor target;
};

void append_parts(const std::string& name, const at::Tensor& tensor, const dcp::TensorEntry& stored,
                  const StoredState& stored_state, std::vector<Part>& out) {
  dcp::check_chunks(name, stored, stored_state.description().string());
  for (const auto& held : chunk_list(tensor)) {
    for (const auto& chunk : stored.chunks) {
      const auto box = checkpoint::intersection(held, chunk.box);
      if (box) out.push_back({name, &chunk, *box, tensor_box(tensor, *box)});
    }
  }
}

/// Verifies all parts.
std::vector<Copy> plan_copies(const std::vector<Part>& parts, StoredState& stored_state,
                              const LoadOptions& options, LoadProgress& progress) {
  std::vector<Copy> out;
  for (const auto& [name, chunk, box, target] : parts) {
    checkpoint::StoredElements source = stored_state.find(name, *chunk, box);
    // The metadata may lack the type, or be wrong about it.
    const std::string wrong = options.cast ? "" : dtype_mismatch(name, source.dtype, target);
    require(wrong.empty(), "load: ", wrong);
    progress.add(target);
    out.push_back({target, std::move(source)});
  }
  return out;
}

/// What a load will do on this rank; open files stay as they are, whatever replaces them.
struct Planned {
  LoadReport report;
  std::string digest;
  std::vector<Copy> copies;
  std::map<std::string, PlainValue> values;
  std::shared_ptr<LoadProgress> progress;
};

Planned plan_rank(const State& state, const fs::path& directory, const LoadOptions& options,
                  int rank) {
  Planned out;
  const auto stored = checkpoint::open_stored(directory, {options.verify, rank});
  out.digest = stored->digest();
  const Entries entries = rename_entries(stored->metadata(), options);
  out.report = compare(state, entries, options);
  require_fit(out.report, options, directory);
  out.progress = std::make_shared<LoadProgress>(state, options);
  std::vector<Part> parts;
  for (const auto& [name, value] : state) {
    const auto found = entries.find(name);
    if (found == entries.end()) continue;
    const auto& [stored_name, entry] = found->second;
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      append_parts(stored_name, *tensor, std::get<dcp::TensorEntry>(*entry), *stored, parts);
    } else {
      out.values.emplace(name, stored->read_value(stored_name, std::get<dcp::ValueEntry>(*entry)));
    }
  }
  out.copies = plan_copies(parts, *stored, options, *out.progress);
  return out;
}

/// Plans on all ranks, of one checkpoint: a save may replace it between two files, or between two
/// ranks, and then all begin again with the new one.
Planned plan_load(const State& state, const fs::path& directory, const LoadOptions& options,
                  comm::RankWorld& world) {
  constexpr int kAttempts = 8;
  const std::string kReplaced = "replaced";
  for (int i = 0; i < kAttempts; ++i) {
    Planned planned;
    std::exception_ptr failure;
    const std::string before = checkpoint::stamp_of(directory);
    try {
      planned = plan_rank(state, directory, options, world.rank());
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    const bool replaced = checkpoint::stamp_of(directory) != before;
    std::set<std::string> seen;
    const std::string mine = replaced ? kReplaced : planned.digest;
    for (const auto& text : checkpoint::all_gather_text(world, mine)) {
      if (!text.empty()) seen.insert(text);
    }
    if (seen.size() > 1 || seen.contains(kReplaced)) continue;
    checkpoint::on_all_ranks(world, [&] {
      if (failure) std::rethrow_exception(failure);
    });
    return planned;
  }
  throw Error(join_text("load: ", directory.string(), " was replaced ", kAttempts,
                        " times while it was read"));
}

}  // namespace

std::string LoadReport::to_text() const {
  std::string out;
  append_list(out, "the checkpoint lacks ", missing);
  append_list(out, "the state lacks ", unexpected);
  append_list(out, "", mismatched);
  return out;
}

LoadReport load(State& state, const fs::path& directory, const LoadOptions& options) {
  const c10::AutoGradMode no_grad(false);
  const auto world = options.world != nullptr ? options.world : comm::current_world();
  const Planned planned = plan_load(state, directory, options, *world);
  for (const auto& [name, value] : state) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    if (tensor != nullptr) checkpoint::about_to_change(*tensor);
  }
  checkpoint::on_all_ranks(*world, [&] {
    checkpoint::ElementReader reader;
    for (const auto& copy : planned.copies) {
      reader.read(copy.target, copy.source);
      planned.progress->add(copy.target);
    }
  });
  for (const auto& [name, value] : planned.values) state[name] = value;
  return planned.report;
}

}  // namespace tessera
