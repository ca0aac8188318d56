#include "tessera/checkpoint/steps.h"

#include <algorithm>
#include <charconv>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/agree.h"
#include "tessera/checkpoint/stored/directory.h"
#include "tessera/checkpoint/stored/remove_tree.h"
#include "tessera/checkpoint/stored/spare_files.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step_";
constexpr std::string_view kRemoving = ".tessera-removing";

std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  int64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kStep.size(), end, step);
  if (error != std::errc() || stop != end || step < 0) return std::nullopt;
  return step;
}

/// ".step_300.tessera-saving" -> 300.
std::optional<int64_t> leftover_of(std::string_view name) {
  const size_t ending = name.find(".tessera-");
  if (!name.starts_with('.') || ending == std::string_view::npos) return std::nullopt;
  return step_of(name.substr(1, ending - 1));
}

/// Removes what interrupted saves and removals have left, of any step.
void clean(const fs::path& root) {
  if (!fs::exists(root)) return;
  std::vector<fs::path> saving, removing;
  for (const auto& item : fs::directory_iterator(root)) {
    const std::string name = item.path().filename().string();
    // What was replaced may be the only one of its step: begin_saving of that step decides.
    if (!leftover_of(name)) continue;
    if (name.ends_with(".tessera-saving")) saving.push_back(item.path());
    if (name.ends_with(kRemoving)) removing.push_back(item.path());
  }
  for (const auto& path : saving) checkpoint::remove_leftover(path);
  for (const auto& path : removing) checkpoint::remove_tree(path);
}

/// A reader never sees half a checkpoint: the name goes first.
void remove_step(const fs::path& root, int64_t step, const fs::path& spare) {
  const fs::path path = step_path(root, step);
  const fs::path hidden = root / join_text(".", path.filename().string(), kRemoving);
  fs::rename(path, hidden);
  checkpoint::sync_directory(root);
  spare.empty() ? checkpoint::remove_tree_in_background(hidden) : checkpoint::retire(hidden, spare);
}

}  // namespace

fs::path step_path(const fs::path& root, int64_t step) { return root / join_text(kStep, step); }

std::vector<int64_t> saved_steps(const fs::path& root) {
  std::vector<int64_t> out;
  if (!fs::is_directory(root)) return out;
  for (const auto& item : fs::directory_iterator(root)) {
    const auto step = step_of(item.path().filename().string());
    if (step && fs::exists(item.path() / dcp::kMetadataFile)) out.push_back(*step);
  }
  std::ranges::sort(out);
  return out;
}

std::optional<int64_t> latest_step(const fs::path& root) {
  const auto steps = saved_steps(root);
  if (steps.empty()) return std::nullopt;
  return steps.back();
}

void save_step(const State& state, const fs::path& root, int64_t step,
               const SaveStepOptions& options) {
  require(step >= 0 && options.keep >= 0, "save_step: step ", step, ", keep ", options.keep);
  const auto world = options.save.world != nullptr ? options.save.world : comm::current_world();
  checkpoint::on_all_ranks(*world, [&] {
    if (world->rank() == 0) clean(root);
  });
  save(state, step_path(root, step), options.save);
  checkpoint::on_all_ranks(*world, [&] {
    if (world->rank() != 0 || options.keep == 0) return;
    auto steps = saved_steps(root);
    std::erase_if(steps, [&](int64_t other) { return other >= step; });
    const auto older = static_cast<size_t>(options.keep - 1);
    for (size_t i = 0; i + older < steps.size(); ++i)
      remove_step(root, steps[i], options.save.spare);
  });
}

}  // namespace tessera
