#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/stored/stored_state.h"
#include "tessera/dcp/checksums.h"
#include "tessera/dcp/items.h"

/// A checkpoint of save() or of torch.distributed.checkpoint, opened for reading. Files are opened
/// when they are needed.
namespace tessera::checkpoint {

class CheckpointReader final : public StoredState {
 public:
  /// Reads and verifies the metadata.
  CheckpointReader(const std::filesystem::path& directory, Options options);

  const dcp::Metadata& metadata() const override { return metadata_; }
  const std::filesystem::path& path() const override { return directory_; }
  std::filesystem::path description() const override { return description_; }
  std::string format() const override { return "PyTorch distributed checkpoint"; }
  std::string digest() const override { return digest_; }
  bool has_checksums() const override { return has_checksums_; }
  StoredElements find(const std::string& name, const dcp::Chunk& chunk, const Box& part) override;
  files::PlainValue read_value(const std::string& name, const dcp::ValueEntry& entry) override;
  void verify_all(const OnProgress& on_progress) override;

 private:
  struct OpenedItem {
    dcp::TensorItem item;
    bool verified = false;  ///< by its own checksum, where the file has none
  };

  StoredElements find_part(const std::string& name, const dcp::Chunk& chunk, const Box& part);
  /// The item of a chunk, which has the chunk's shape.
  OpenedItem& open_item(const std::string& name, const dcp::Chunk& chunk);
  void verify_item(const std::string& name, const dcp::VerifiedFile& file,
                   const dcp::TensorItem& item);
  void verify_value(const std::string& name, const dcp::ValueEntry& entry);
  void verify_items(const dcp::Metadata& metadata, const std::function<void(uint64_t)>& count);
  dcp::VerifiedFile& open(const std::string& file);

  /// Reads, verifies and adds to the digest one file that describes the checkpoint.
  dcp::Metadata read_description(const std::string& name);

  std::filesystem::path directory_;
  std::filesystem::path description_;
  Options options_;
  bool has_checksums_ = false;
  std::string digest_;
  dcp::Checksums checksums_;
  dcp::Metadata metadata_;
  std::map<int, dcp::Metadata> ranks_;  ///< where each rank has described what it saved itself
  std::map<std::string, dcp::VerifiedFile> files_;
  std::map<std::pair<std::string, uint64_t>, OpenedItem> items_;
};

}  // namespace tessera::checkpoint
