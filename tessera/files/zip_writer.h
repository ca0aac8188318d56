#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/files/output_file.h"
#include "tessera/files/zip_reader.h"

namespace tessera::files {

/// Writes a zip archive byte for byte as PyTorch's writer does: records stored without compression,
/// contents at multiples of 64 bytes (padded by an extra field "FB" filled with 'Z'), sizes in a
/// data descriptor after the contents, ZIP64 where a size or offset needs it.
///
///   ZipWriter zip("model.pt2");
///   zip.add("model/archive_format", "pt2");
///   zip.begin("model/data/weights/weight_0", 1 << 30);    // in parts; the size must be known
///   while (...) zip.write(part);
///   zip.finish();                                          // without it there is no archive
///
/// Records of known sizes may also be written by several threads, each its own:
///
///   auto slot = zip.reserve("model/data/weights/weight_1", 1 << 30);
///   while (...) zip.write(slot, part);                     // from one thread, until it is full
class ZipWriter {
 public:
  explicit ZipWriter(const std::filesystem::path& path)
      : owned_(std::make_unique<OutputFile>(path)), file_(*owned_) {}
  /// An archive inside a larger file, from its current position on. `finish` leaves the file open.
  explicit ZipWriter(OutputFile& file) : file_(file), start_(file.position()) {}

  void add(std::string_view name, std::span<const std::byte> contents);
  void add(std::string_view name, std::string_view contents);
  /// Copies a record with its stored checksum, valid or not.
  void copy(const ZipReader& from, const ZipRecord& record);

  void begin(std::string_view name, uint64_t size);
  void write(std::span<const std::byte> part);

  /// The place of a record whose contents follow later.
  struct Slot {
    size_t entry = 0;     // its index in the directory
    uint64_t offset = 0;  // in the file, of the next byte
    uint64_t left = 0;
    uint32_t crc = 0;
  };
  /// Space for a record, after those that were added before. To be filled before `finish`.
  Slot reserve(std::string_view name, uint64_t size);
  /// The next bytes of a reserved record. Threads may write to different slots concurrently, as
  /// long as none calls another function of the writer.
  void write(Slot& slot, std::span<const std::byte> part);

  /// Writes the directory and the end of the archive. No call may follow.
  void finish(OutputFile::CloseOptions options);
  void finish() { finish({}); }

 private:
  struct Entry {
    std::string name;
    uint64_t header = 0;
    uint64_t size = 0;
    uint32_t crc = 0;
    bool reserved = false;  // and not filled yet
  };

  void begin_record(std::string_view name, uint64_t size);
  void end_record();
  static std::string descriptor_of(const Entry& entry);
  void write_directory_entry(const Entry& entry);

  uint64_t position() const { return file_.position() - start_; }

  std::unique_ptr<OutputFile> owned_;
  OutputFile& file_;
  uint64_t start_ = 0;  // of the archive in the file
  std::vector<Entry> entries_;
  std::optional<uint32_t> copied_crc_;
  uint64_t left_ = 0;  // bytes still to be written of the last record
  bool open_ = false;  // the last record has no data descriptor yet
};

}  // namespace tessera::files
