#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/files/input_file.h"
#include "tessera/files/mapped_file.h"

/// Zip archives as PyTorch writes them: every record is stored without compression, so that it is a
/// range of the file. Supports ZIP64.
///
/// The input is not trusted: every offset and size is checked against the file before it is used;
/// records that overlap, occur twice, are compressed or encrypted are rejected; errors name the
/// file and the record. Contents are not read (`verify` checks a record's CRC).
namespace tessera::files {

class ByteSource;

struct TESSERA_API ZipRecord {
  std::string name;     // "model/data/weights/weight_0"
  uint64_t offset = 0;  // of the contents, from the archive's start
  uint64_t size = 0;
  uint32_t crc = 0;
};

class TESSERA_API ZipReader {
 public:
  /// Maps the file. Throws InvalidArgument for one that is not such an archive.
  explicit ZipReader(const std::filesystem::path& path);
  /// An archive that is `size` bytes of a larger file, from `offset` on; the caller has checked
  /// that they are inside. Offsets of its records count from there. Nothing is mapped: records are
  /// read when they are asked for, and kept.
  ZipReader(std::shared_ptr<const InputFile> file, uint64_t offset, uint64_t size);
  ~ZipReader();
  ZipReader(ZipReader&&) noexcept;
  ZipReader& operator=(ZipReader&&) noexcept;
  ZipReader(const ZipReader&) = delete;  // by_name_ references records_
  ZipReader& operator=(const ZipReader&) = delete;

  /// In the order of the archive's directory, which is the order of writing.
  const std::vector<ZipRecord>& records() const { return records_; }
  /// nullptr if there is no record of that name.
  const ZipRecord* find(std::string_view name) const;
  std::span<const std::byte> bytes(const ZipRecord& record) const;
  std::string_view text(const ZipRecord& record) const;
  /// Throws InvalidArgument if the contents do not match the record's CRC. Reads all of them.
  void verify(const ZipRecord& record) const;

  /// The name of the archive in error messages.
  const std::string& path() const { return path_; }
  /// Keeps the bytes of all records alive; nullptr where nothing is mapped.
  const std::shared_ptr<const MappedFile>& file() const { return file_; }

 private:
  struct Directory {
    uint64_t offset = 0;
    uint64_t size = 0;
    uint64_t count = 0;
  };

  void read_records();
  Directory find_directory() const;
  uint64_t find_end() const;
  Directory read_zip64_end(uint64_t at, uint64_t locator) const;
  void read_directory(const Directory& directory);
  uint64_t contents_offset(const ZipRecord& record, uint64_t header, uint64_t limit) const;
  void check_overlaps() const;
  [[noreturn]] void fail(std::string_view what) const;

  std::shared_ptr<const MappedFile> file_;
  std::unique_ptr<ByteSource> source_;
  // Records, by offset and size, where nothing is mapped.
  mutable std::map<std::pair<uint64_t, uint64_t>, std::vector<std::byte>> read_;
  std::string path_;
  std::vector<ZipRecord> records_;
  std::unordered_map<std::string_view, size_t> by_name_;  // keys reference records_
};

}  // namespace tessera::files
