#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/files/input_file.h"

/// The checksums of a checkpoint's files, in a file beside them that PyTorch ignores: one CRC-32
/// for every MiB, so that a reader verifies just the blocks that it takes something from.
///
///   {"format": "tessera checksums 1", "block": 1048576,
///    "files": {"__0_0.distcp": {"size": 2097152, "crc32": "1c291ca3 8f37..."}}}
namespace tessera::dcp {

inline constexpr std::string_view kChecksumFile = "checksums.json";

struct FileSums {
  uint64_t size = 0;
  std::vector<uint32_t> sums;
};

using Checksums = std::map<std::string, FileSums>;

std::string checksums_text(const Checksums& checksums);
/// Throws InvalidArgument that names `document` for what is not such a file.
Checksums read_checksums(std::string_view text, const std::string& document);

/// Sums in eight hexadecimal digits each.
std::string sums_text(std::span<const uint32_t> sums);
/// nullopt for anything else.
std::optional<std::vector<uint32_t>> parse_sums(std::string_view text);

/// A file of a checkpoint whose blocks are verified when they are first needed.
class VerifiedFile {
 public:
  /// Without `sums` nothing can be verified here. Throws InvalidArgument if the file has another
  /// size than its sums are of.
  VerifiedFile(std::shared_ptr<const files::InputFile> file, std::optional<FileSums> sums);

  const std::shared_ptr<const files::InputFile>& file() const { return file_; }
  bool has_sums() const { return sums_.has_value(); }
  /// Throws InvalidArgument that names the file and the bytes if a block of this range is damaged.
  /// Reads each block once, however often it is asked for, in parts that stay in a core's cache
  /// while their sums are computed.
  void verify(uint64_t offset, uint64_t length);

 private:
  std::shared_ptr<const files::InputFile> file_;
  std::optional<FileSums> sums_;
  bool matches(uint64_t block);

  std::vector<bool> verified_;
  std::vector<std::byte> buffer_;
};

}  // namespace tessera::dcp
