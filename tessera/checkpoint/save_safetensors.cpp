#include "tessera/checkpoint/save_safetensors.h"

#include <c10/core/GradMode.h>

#include <optional>

#include "tessera/checkpoint/agree.h"
#include "tessera/checkpoint/chunks.h"
#include "tessera/checkpoint/safetensors_files.h"
#include "tessera/checkpoint/stored/directory.h"

namespace tessera {

namespace fs = std::filesystem;
using checkpoint::on_all_ranks;
using checkpoint::SafetensorsFiles;
using checkpoint::StatePlan;

void save_safetensors(const State& state, const fs::path& path,
                      const SaveSafetensorsOptions& options) {
  const c10::AutoGradMode no_grad(false);
  const auto shared_world = options.world != nullptr ? options.world : comm::current_world();
  comm::RankWorld& world = *shared_world;
  const bool is_first = world.rank() == 0;
  const StatePlan plan = checkpoint::plan_state(state, world);
  const SafetensorsFiles files(plan, path, options);
  const fs::path saving = checkpoint::saving_path(path);
  std::optional<checkpoint::SavingDirectory> owned;  // by rank 0
  on_all_ranks(world, [&] {
    if (!is_first) return;
    owned.emplace(path);
    files.create(saving);
  });
  on_all_ranks(world, [&] {
    files.write(plan, saving, [&](size_t i, const at::Tensor& place) {
      const auto& write = plan.mine[i];
      const auto& tensor = std::get<at::Tensor>(state.at(plan.entries[write.entry].name));
      place.copy_(tensor_box(tensor, write.box));
    });
  });
  on_all_ranks(world, [&] {
    if (is_first) files.commit(*owned);
  });
}

}  // namespace tessera
