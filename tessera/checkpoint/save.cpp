#include "tessera/checkpoint/save.h"

#include <c10/core/GradMode.h>

#include <optional>

#include "tessera/checkpoint/agree.h"
#include "tessera/checkpoint/stored/directory.h"
#include "tessera/checkpoint/write_files.h"

namespace tessera {

namespace fs = std::filesystem;
using checkpoint::on_all_ranks;
using checkpoint::StatePlan;

void save(const State& state, const fs::path& directory, const SaveOptions& options) {
  const c10::AutoGradMode no_grad(false);
  const auto shared_world = options.world != nullptr ? options.world : comm::current_world();
  comm::RankWorld& world = *shared_world;
  const bool is_first = world.rank() == 0;
  const auto reached = [&](SaveStage stage) {
    if (options.on_stage) options.on_stage(stage);
  };
  const StatePlan plan = checkpoint::plan_state(state, world);
  const fs::path saving = checkpoint::saving_path(directory);
  std::optional<checkpoint::SavingDirectory> owned;  // by rank 0
  on_all_ranks(world, [&] {
    reached(SaveStage::planned);
    if (is_first) {
      owned.emplace(directory, checkpoint::SavingDirectory::Options{options.spare, world.size()});
    }
    reached(SaveStage::prepared);
  });
  std::string report;
  on_all_ranks(world, [&] {
    report = checkpoint::write_my_file(plan, checkpoint::my_parts(state, plan), world.rank(),
                                       saving, options.on_progress);
    reached(SaveStage::written);
  });
  const auto reports = checkpoint::all_gather_text(world, report);
  on_all_ranks(world, [&] {
    if (!is_first) return;
    checkpoint::write_description(plan, reports, options.paths, saving);
    reached(SaveStage::described);
    owned->commit();
  });
  reached(SaveStage::committed);
}

}  // namespace tessera
