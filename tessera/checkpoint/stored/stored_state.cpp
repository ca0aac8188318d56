#include "tessera/checkpoint/stored/stored_state.h"

#include "tessera/base/errors.h"
#include "tessera/checkpoint/stored/directory.h"
#include "tessera/checkpoint/stored/reader.h"
#include "tessera/checkpoint/stored/safetensors_reader.h"
#include "tessera/dcp/rank_metadata.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::unique_ptr<StoredState> open_stored(const fs::path& path, StoredState::Options options) {
  const fs::path found = readable_directory(path);
  if (fs::is_directory(found) &&
      (fs::exists(found / dcp::kMetadataFile) || !dcp::rank_metadata_files(found).empty())) {
    return std::make_unique<CheckpointReader>(found, options);
  }
  if (is_safetensors(found)) return std::make_unique<SafetensorsReader>(found);
  throw InvalidArgument(join_text(path.string(), " is not a checkpoint: neither a directory with ",
                                  dcp::kMetadataFile, " nor safetensors"));
}

}  // namespace tessera::checkpoint
