#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "tessera/base/api.h"
#include "tessera/checkpoint/state.h"
#include "tessera/comm/world.h"

namespace tessera {

struct TESSERA_API SaveSafetensorsOptions {
  /// Who takes part; by default the current world.
  std::shared_ptr<comm::RankWorld> world = nullptr;
  /// The most bytes of tensors in one file of a directory; a larger tensor has a file of its own.
  uint64_t max_file_bytes = 5'000'000'000;
  /// The header's "__metadata__"; transformers asks for this one.
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
};

/// Writes the state's tensors as safetensors, which transformers and many others read, and load()
/// too. A path that ends in .safetensors is one file; any other is a directory with
/// model.safetensors or, beyond max_file_bytes, model-00001-of-00003.safetensors and so on with
/// model.safetensors.index.json.
///
/// Every rank calls it and writes its own parts into the shared files; nothing is gathered or sent.
/// As with save(), what was there before stays until the new one is complete and synced, and errors
/// are thrown on every rank. The format holds tensors alone: a plain value is NotSupported.
TESSERA_API void save_safetensors(const State& state, const std::filesystem::path& path,
                                  const SaveSafetensorsOptions& options = {});

}  // namespace tessera
