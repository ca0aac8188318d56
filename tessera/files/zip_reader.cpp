#include "tessera/files/zip_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tessera/base/errors.h"
#include "tessera/files/crc32.h"
#include "tessera/files/zip_format.h"

namespace tessera::files {
namespace {

static_assert(std::endian::native == std::endian::little);

template <typename T>
T read_at(std::span<const std::byte> bytes, size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Replaces the values that mean "see the ZIP64 field" by those of the field, in the format's
/// order. Returns false if the field is missing or too short.
bool apply_zip64(std::span<const std::byte> extra, std::span<uint64_t* const> values) {
  const auto stands_for = [](const uint64_t* value) { return *value == zip::kMax32; };
  if (std::ranges::none_of(values, stands_for)) return true;
  for (size_t at = 0; at + 4 <= extra.size();) {
    const auto id = read_at<uint16_t>(extra, at);
    const auto size = read_at<uint16_t>(extra, at + 2);
    at += 4;
    if (size > extra.size() - at) return false;
    if (id != zip::kExtraZip64) {
      at += size;
      continue;
    }
    size_t used = 0;
    for (uint64_t* value : values) {
      if (!stands_for(value)) continue;
      if (used + 8 > size) return false;
      *value = read_at<uint64_t>(extra, at + used);
      used += 8;
    }
    return true;
  }
  return false;
}

}  // namespace

ZipReader::ZipReader(const std::filesystem::path& path)
    : file_(MappedFile::open(path)), archive_(file_->bytes()), path_(file_->path()) {
  read_records();
}

ZipReader::ZipReader(std::shared_ptr<const MappedFile> file, uint64_t offset, uint64_t size)
    : file_(std::move(file)),
      archive_(file_->bytes().subspan(offset, size)),
      path_(join_text(file_->path(), " at byte ", offset)) {
  read_records();
}

void ZipReader::read_records() {
  read_directory(find_directory());
  for (size_t i = 0; i < records_.size(); ++i) {
    if (!by_name_.emplace(records_[i].name, i).second) {
      fail(join_text("record ", records_[i].name, " occurs twice"));
    }
  }
  check_overlaps();
}

void ZipReader::fail(std::string_view what) const {
  throw InvalidArgument(join_text(path(), " is not a readable archive: ", what));
}

ZipReader::Directory ZipReader::find_directory() const {
  const auto all = archive_;
  if (all.size() < zip::kEndSize) fail(join_text("it has only ", all.size(), " bytes"));
  // A comment of at most 64 KiB may follow the end record.
  const size_t first = all.size() - std::min(all.size(), zip::kEndSize + zip::kMax16);
  size_t end = all.size() - zip::kEndSize;
  while (read_at<uint32_t>(all, end) != zip::kEnd ||
         end + zip::kEndSize + read_at<uint16_t>(all, end + 20) != all.size()) {
    if (end == first) fail("the end of its directory is missing (truncated, or no zip file)");
    --end;
  }
  Directory found{.offset = read_at<uint32_t>(all, end + 16),
                  .size = read_at<uint32_t>(all, end + 12),
                  .count = read_at<uint16_t>(all, end + 10)};
  uint64_t limit = end;
  if (end >= zip::kEnd64LocatorSize &&
      read_at<uint32_t>(all, end - zip::kEnd64LocatorSize) == zip::kEnd64Locator) {
    const auto at = read_at<uint64_t>(all, end - zip::kEnd64LocatorSize + 8);
    const uint64_t locator = end - zip::kEnd64LocatorSize;
    if (at > locator || locator - at < zip::kEnd64Size ||
        read_at<uint32_t>(all, at) != zip::kEnd64) {
      fail("its ZIP64 end record is missing");
    }
    found = {.offset = read_at<uint64_t>(all, at + 48),
             .size = read_at<uint64_t>(all, at + 40),
             .count = read_at<uint64_t>(all, at + 32)};
    limit = at;
  }
  if (found.offset > limit || found.size > limit - found.offset) {
    fail(join_text("its directory of ", found.size, " bytes at ", found.offset,
                   " is not inside the file"));
  }
  return found;
}

void ZipReader::read_directory(const Directory& directory) {
  const auto all = archive_;
  const auto entries = all.subspan(directory.offset, directory.size);
  if (directory.count > entries.size() / zip::kDirectoryEntrySize) {
    fail(join_text("its directory has no room for ", directory.count, " records"));
  }
  records_.reserve(directory.count);
  size_t at = 0;
  for (uint64_t i = 0; i < directory.count; ++i) {
    if (entries.size() - at < zip::kDirectoryEntrySize ||
        read_at<uint32_t>(entries, at) != zip::kDirectoryEntry) {
      fail(join_text("entry ", i, " of its directory is broken"));
    }
    const auto flags = read_at<uint16_t>(entries, at + 8);
    const auto method = read_at<uint16_t>(entries, at + 10);
    const auto name_size = read_at<uint16_t>(entries, at + 28);
    const auto extra_size = read_at<uint16_t>(entries, at + 30);
    const auto comment_size = read_at<uint16_t>(entries, at + 32);
    const size_t rest = size_t{name_size} + extra_size + comment_size;
    if (entries.size() - at - zip::kDirectoryEntrySize < rest) {
      fail(join_text("entry ", i, " of its directory is truncated"));
    }
    ZipRecord record;
    record.name = as_text(entries.subspan(at + zip::kDirectoryEntrySize, name_size));
    record.crc = read_at<uint32_t>(entries, at + 16);
    uint64_t stored = read_at<uint32_t>(entries, at + 20);
    record.size = read_at<uint32_t>(entries, at + 24);
    uint64_t header = read_at<uint32_t>(entries, at + 42);
    const auto extra = entries.subspan(at + zip::kDirectoryEntrySize + name_size, extra_size);
    uint64_t* const wide[] = {&record.size, &stored, &header};
    if (!apply_zip64(extra, wide)) {
      fail(join_text("record ", record.name, " lacks its 64-bit sizes"));
    }
    if ((flags & zip::kFlagEncrypted) != 0)
      fail(join_text("record ", record.name, " is encrypted"));
    if (method != 0 || stored != record.size) {
      fail(join_text("record ", record.name,
                     " is compressed; torch.export.save and torch.save store records as they are"));
    }
    record.offset = contents_offset(record, header, directory.offset);
    records_.push_back(std::move(record));
    at += zip::kDirectoryEntrySize + rest;
  }
}

uint64_t ZipReader::contents_offset(const ZipRecord& record, uint64_t header,
                                    uint64_t limit) const {
  const auto all = archive_;
  const auto outside = [&] { fail(join_text("record ", record.name, " is not inside the file")); };
  if (header > limit || limit - header < zip::kLocalHeaderSize) outside();
  const auto name_size = read_at<uint16_t>(all, header + 26);
  const auto extra_size = read_at<uint16_t>(all, header + 28);
  const uint64_t head = zip::kLocalHeaderSize + uint64_t{name_size} + extra_size;
  if (limit - header < head || limit - header - head < record.size) outside();
  if (read_at<uint32_t>(all, header) != zip::kLocalHeader ||
      as_text(all.subspan(header + zip::kLocalHeaderSize, name_size)) != record.name) {
    fail(join_text("record ", record.name, " does not start where its directory says"));
  }
  return header + head;
}

void ZipReader::check_overlaps() const {
  std::vector<const ZipRecord*> by_offset;
  for (const auto& record : records_) by_offset.push_back(&record);
  std::ranges::sort(by_offset, {}, &ZipRecord::offset);
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const auto& before = *by_offset[i - 1];
    if (before.offset + before.size > by_offset[i]->offset) {
      fail(join_text("records ", before.name, " and ", by_offset[i]->name, " overlap"));
    }
  }
}

const ZipRecord* ZipReader::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &records_[it->second];
}

std::span<const std::byte> ZipReader::bytes(const ZipRecord& record) const {
  return archive_.subspan(record.offset, record.size);
}

std::string_view ZipReader::text(const ZipRecord& record) const { return as_text(bytes(record)); }

void ZipReader::verify(const ZipRecord& record) const {
  const uint32_t found = crc32(bytes(record));
  require(found == record.crc, path(), ": record ", record.name,
          " is damaged: its contents do not have the checksum that was stored with them");
}

}  // namespace tessera::files
