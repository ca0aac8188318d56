#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "tessera/checkpoint/stored/stored_state.h"
#include "tessera/files/safetensors.h"

namespace tessera::checkpoint {

/// Whether `path` is a .safetensors file, or a directory with an index or such files.
bool is_safetensors(const std::filesystem::path& path);

/// A model as transformers saves it: one file, or several with model.safetensors.index.json. An
/// index must name every tensor of its files and no other, and only files of the directory. The
/// format has no checksums: damage shows only where a header breaks.
class SafetensorsReader final : public StoredState {
 public:
  explicit SafetensorsReader(const std::filesystem::path& path);

  const dcp::Metadata& metadata() const override { return metadata_; }
  const std::filesystem::path& path() const override { return path_; }
  std::filesystem::path description() const override { return path_; }
  std::string format() const override { return "safetensors"; }
  std::string digest() const override { return ""; }
  bool has_checksums() const override { return false; }
  StoredElements find(const std::string& name, const dcp::Chunk& chunk, const Box& part) override;
  files::PlainValue read_value(const std::string& name, const dcp::ValueEntry& entry) override;
  void verify_all(const OnProgress&) override {}

 private:
  void add_file(const std::filesystem::path& directory, const std::string& name);
  void check_index(const std::filesystem::path& index);

  std::filesystem::path path_;
  dcp::Metadata metadata_;
  std::map<std::string, files::SafetensorsFile> files_;
};

}  // namespace tessera::checkpoint
