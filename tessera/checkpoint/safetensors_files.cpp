#include "tessera/checkpoint/safetensors_files.h"

#include <ATen/ops/from_blob.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/files/mapped_output.h"
#include "tessera/files/output_file.h"

namespace tessera::checkpoint {

namespace fs = std::filesystem;
using files::SafetensorsEntry;

/// Tensors go to files in the order of names; a new one begins when one is full.
SafetensorsFiles::SafetensorsFiles(const StatePlan& plan, const fs::path& path,
                                   const SaveSafetensorsOptions& options)
    : one_file_(path.extension() == ".safetensors") {
  std::vector<std::vector<SafetensorsEntry>> groups(1);
  uint64_t filled = 0;
  for (const auto& entry : plan.entries) {
    if (!entry.is_tensor) {
      throw NotSupported(join_text("save_safetensors: ", entry.name,
                                   " is not a tensor; the format holds tensors alone"));
    }
    const auto bytes = static_cast<uint64_t>(numel_of(entry.shape) * dtype_bytes(entry.dtype));
    if (!one_file_ && filled > 0 && filled + bytes > options.max_file_bytes) {
      groups.emplace_back();
      filled = 0;
    }
    filled += bytes;
    groups.back().push_back({.name = entry.name, .dtype = entry.dtype, .shape = entry.shape});
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    std::string file = one_file_ ? path.filename().string() : "model.safetensors";
    if (groups.size() > 1) {
      char numbered[64];
      std::snprintf(numbered, sizeof numbered, "model-%05zu-of-%05zu.safetensors", i + 1,
                    groups.size());
      file = numbered;
    }
    files_.push_back({file, files::layout_safetensors(std::move(groups[i]), options.metadata)});
  }
}

void SafetensorsFiles::create(const fs::path& directory) const {
  for (const auto& file : files_) {
    const fs::path path = directory / file.name;
    files::MappedOutput::create(path, file.layout.size);
    const auto output = files::MappedOutput::open(path);
    std::memcpy(output->bytes().data(), file.layout.start.data(), file.layout.start.size());
    output->sync();
  }
}

void SafetensorsFiles::write(const StatePlan& plan, const fs::path& directory,
                             const Fill& fill) const {
  std::map<std::string, std::pair<size_t, const SafetensorsEntry*>> places;
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const auto& entry : files_[i].layout.entries) places[entry.name] = {i, &entry};
  }
  std::map<size_t, std::shared_ptr<files::MappedOutput>> open;
  for (size_t i = 0; i < plan.mine.size(); ++i) {
    const auto& write = plan.mine[i];
    const PlannedEntry& entry = plan.entries[write.entry];
    const auto [file, place] = places.at(entry.name);
    auto& output = open[file];
    if (output == nullptr) output = files::MappedOutput::open(directory / files_[file].name);
    at::Tensor target = at::from_blob(output->bytes().data() + place->offset, entry.shape,
                                      at::TensorOptions(static_cast<at::ScalarType>(entry.dtype)));
    for (size_t d = 0; d < write.box.begin.size(); ++d) {
      target = target.narrow(static_cast<int64_t>(d), write.box.begin[d],
                             write.box.end[d] - write.box.begin[d]);
    }
    fill(i, target);
  }
  for (const auto& [file, output] : open) output->sync();
}

void SafetensorsFiles::write_index(const fs::path& directory) const {
  using Json = nlohmann::ordered_json;
  Json map = Json::object();
  uint64_t total = 0;
  for (const auto& file : files_) {
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

void SafetensorsFiles::commit(SavingDirectory& saving) const {
  if (files_.size() > 1) write_index(saving.path());
  one_file_ ? saving.commit_file() : saving.commit();
}

}  // namespace tessera::checkpoint
