#include "tessera/checkpoint/save_safetensors.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/checkpoint/agree.h"
#include "tessera/checkpoint/chunks.h"
#include "tessera/checkpoint/directory.h"
#include "tessera/checkpoint/state_plan.h"
#include "tessera/files/mapped_output.h"
#include "tessera/files/output_file.h"
#include "tessera/files/safetensors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using checkpoint::on_all_ranks;
using checkpoint::PlannedEntry;
using checkpoint::StatePlan;
using files::SafetensorsEntry;
using Json = nlohmann::ordered_json;

struct File {
  std::string name;
  files::SafetensorsLayout layout;
};

uint64_t bytes_of(const PlannedEntry& entry) {
  return static_cast<uint64_t>(numel_of(entry.shape) * dtype_bytes(entry.dtype));
}

/// Which tensors go to which file: in the order of names, a new file when one is full.
std::vector<File> lay_out(const StatePlan& plan, bool one_file, const std::string& name,
                          const SaveSafetensorsOptions& options) {
  std::vector<std::vector<SafetensorsEntry>> groups(1);
  uint64_t filled = 0;
  for (const auto& entry : plan.entries) {
    if (!entry.is_tensor) {
      throw NotSupported(join_text("save_safetensors: ", entry.name,
                                   " is no tensor; the format holds tensors alone"));
    }
    const uint64_t bytes = bytes_of(entry);
    if (!one_file && filled > 0 && filled + bytes > options.max_file_bytes) {
      groups.emplace_back();
      filled = 0;
    }
    filled += bytes;
    groups.back().push_back({.name = entry.name, .dtype = entry.dtype, .shape = entry.shape});
  }
  std::vector<File> out;
  for (size_t i = 0; i < groups.size(); ++i) {
    std::string file = name;
    if (groups.size() > 1) {
      char numbered[64];
      std::snprintf(numbered, sizeof numbered, "model-%05zu-of-%05zu.safetensors", i + 1,
                    groups.size());
      file = numbered;
    }
    out.push_back({file, files::layout_safetensors(std::move(groups[i]), options.metadata)});
  }
  return out;
}

void write_index(const std::vector<File>& files, const fs::path& directory) {
  Json map = Json::object();
  uint64_t total = 0;
  for (const auto& file : files) {
    for (const auto& entry : file.layout.entries) {
      map[entry.name] = file.name;
      total += entry.size;
    }
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  files::OutputFile out(directory / "model.safetensors.index.json");
  out.write(index.dump(2) + "\n");
  out.close({.sync = true});
}

/// Copies this rank's boxes into the files that rank 0 has created.
void write_my_parts(const State& state, const StatePlan& plan, const std::vector<File>& files,
                    const fs::path& directory) {
  std::map<std::string, std::pair<size_t, const SafetensorsEntry*>> places;
  for (size_t i = 0; i < files.size(); ++i) {
    for (const auto& entry : files[i].layout.entries) places[entry.name] = {i, &entry};
  }
  std::map<size_t, std::shared_ptr<files::MappedOutput>> open;
  for (const auto& write : plan.mine) {
    const PlannedEntry& entry = plan.entries[write.entry];
    const auto [file, place] = places.at(entry.name);
    auto& output = open[file];
    if (output == nullptr) output = files::MappedOutput::open(directory / files[file].name);
    at::Tensor target = at::from_blob(output->bytes().data() + place->offset, entry.shape,
                                      at::TensorOptions(static_cast<at::ScalarType>(entry.dtype)));
    for (size_t d = 0; d < write.box.begin.size(); ++d) {
      target = target.narrow(static_cast<int64_t>(d), write.box.begin[d],
                             write.box.end[d] - write.box.begin[d]);
    }
    target.copy_(tensor_box(std::get<at::Tensor>(state.at(entry.name)), write.box));
  }
  for (const auto& [file, output] : open) output->sync();
}

void create_files(const std::vector<File>& files, const fs::path& directory) {
  for (const auto& file : files) {
    const fs::path path = directory / file.name;
    files::MappedOutput::create(path, file.layout.size);
    const auto output = files::MappedOutput::open(path);
    std::memcpy(output->bytes().data(), file.layout.start.data(), file.layout.start.size());
    output->sync();
  }
}

}  // namespace

void save_safetensors(const State& state, const fs::path& path,
                      const SaveSafetensorsOptions& options) {
  const c10::AutoGradMode no_grad(false);
  const auto shared_world = options.world != nullptr ? options.world : comm::current_world();
  comm::RankWorld& world = *shared_world;
  const bool is_first = world.rank() == 0;
  const bool one_file = path.extension() == ".safetensors";
  const StatePlan plan = checkpoint::plan_state(state, world);
  const std::string name = one_file ? path.filename().string() : "model.safetensors";
  const std::vector<File> files = lay_out(plan, one_file, name, options);
  const fs::path saving = checkpoint::saving_path(path);
  try {
    on_all_ranks(world, [&] {
      if (!is_first) return;
      checkpoint::begin_saving(path);
      create_files(files, saving);
    });
    on_all_ranks(world, [&] { write_my_parts(state, plan, files, saving); });
    on_all_ranks(world, [&] {
      if (!is_first) return;
      if (files.size() > 1) write_index(files, saving);
      one_file ? checkpoint::commit_file(path) : checkpoint::commit_saving(path);
    });
  } catch (...) {
    if (is_first) checkpoint::abandon_saving(path);
    throw;
  }
}

}  // namespace tessera
