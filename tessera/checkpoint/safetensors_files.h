#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/save_safetensors.h"
#include "tessera/checkpoint/state_plan.h"
#include "tessera/checkpoint/stored/directory.h"
#include "tessera/files/safetensors.h"

/// The files of a state in safetensors: which tensor is where, and how boxes of tensors get there.
namespace tessera::checkpoint {

class SafetensorsFiles {
 public:
  /// One file if `path` ends in .safetensors, else a directory; see save_safetensors. Throws
  /// NotSupported for an entry that is not a tensor.
  SafetensorsFiles(const StatePlan& plan, const std::filesystem::path& path,
                   const SaveSafetensorsOptions& options);

  /// Creates the files, of their sizes, with their headers.
  void create(const std::filesystem::path& directory) const;

  /// For each of plan.mine calls `fill` with its place in the file, which is mapped, as a tensor;
  /// then syncs.
  using Fill = std::function<void(size_t write, const at::Tensor& place)>;
  void write(const StatePlan& plan, const std::filesystem::path& directory, const Fill& fill) const;

  /// Writes the index, if there are several files, and puts all in place.
  void commit(SavingDirectory& saving) const;

 private:
  struct File {
    std::string name;
    files::SafetensorsLayout layout;
  };

  void write_index(const std::filesystem::path& directory) const;

  bool one_file_;
  std::vector<File> files_;
};

}  // namespace tessera::checkpoint
