#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/files/input_file.h"

/// The safetensors format: eight bytes with the header's length, a JSON header, then the tensors'
/// bytes in row-major order without gaps.
///
///   SafetensorsFile file("model.safetensors");
///   const SafetensorsEntry* entry = file.find("layers.0.weight");   // dtype, shape
///   file.bytes(*entry)                                              // a copy
namespace tessera::files {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  uint64_t offset = 0;  ///< of the bytes in the file
  uint64_t size = 0;
};

class SafetensorsFile {
 public:
  /// Reads the header and checks it: ranges must be inside the file, match dtype and shape,
  /// not overlap and leave no gap. Throws InvalidArgument that names the file and the tensor.
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// In header order.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const SafetensorsEntry* find(std::string_view name) const;
  std::vector<std::byte> bytes(const SafetensorsEntry& entry) const;
  /// The header's "__metadata__".
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::shared_ptr<const InputFile>& file() const { return file_; }

 private:
  std::shared_ptr<const InputFile> file_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// The layout of a file to be written.
struct SafetensorsLayout {
  std::string start;  ///< the first bytes of the file: length and header
  std::vector<SafetensorsEntry> entries;
  uint64_t size = 0;  ///< of the whole file
};

/// Lays out tensors of the given names, dtypes and shapes, in this order. Throws InvalidArgument
/// for a duplicate name, NotSupported for a dtype that the format does not have.
SafetensorsLayout layout_safetensors(std::vector<SafetensorsEntry> tensors,
                                     const std::map<std::string, std::string>& metadata);

/// A tensor to be written: its bytes are requested when they are written.
struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  /// Must call the sink with all bytes in order, in any number of parts.
  std::function<void(const std::function<void(std::span<const std::byte>)>& sink)> write;
};

struct SafetensorsOptions {
  std::map<std::string, std::string> metadata;
  bool sync = false;  ///< wait until the data is on the device
};

/// Writes the file with the tensors in the given order; for aligned reads, pass the widest element
/// types first. Throws InvalidArgument for a duplicate name.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<SafetensorsTensor>& tensors,
                       const SafetensorsOptions& options);

}  // namespace tessera::files
