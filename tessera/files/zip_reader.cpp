#include "tessera/files/zip_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tessera/base/errors.h"
#include "tessera/files/byte_source.h"
#include "tessera/files/crc32.h"
#include "tessera/files/zip_format.h"

namespace tessera::files {
namespace {

static_assert(std::endian::native == std::endian::little);

/// By read(2), block by block: the whole file does not become resident.
uint32_t crc32_of(const MappedFile& file, std::span<const std::byte> part) {
  constexpr size_t kBlock = size_t{1} << 18;  // stays in the cache
  std::vector<std::byte> block(std::min(kBlock, part.size()));
  uint32_t crc = 0;
  for (size_t at = 0; at < part.size(); at += block.size()) {
    const auto piece = part.subspan(at, std::min(block.size(), part.size() - at));
    file.read(piece, block.data());
    crc = crc32({block.data(), piece.size()}, crc);
  }
  return crc;
}

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
    : file_(MappedFile::open(path)),
      source_(std::make_unique<MappedSource>(file_)),
      path_(file_->path()) {
  read_records();
}

ZipReader::ZipReader(std::shared_ptr<const InputFile> file, uint64_t offset, uint64_t size)
    : path_(join_text(file->path(), " at byte ", offset)) {
  source_ = std::make_unique<ReadSource>(std::move(file), offset, size);
  read_records();
}

ZipReader::~ZipReader() = default;
ZipReader::ZipReader(ZipReader&&) noexcept = default;
ZipReader& ZipReader::operator=(ZipReader&&) noexcept = default;

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
  const uint64_t end = find_end();
  const auto tail = source_->view(end, zip::kEndSize);
  Directory found{.offset = read_at<uint32_t>(tail, 16),
                  .size = read_at<uint32_t>(tail, 12),
                  .count = read_at<uint16_t>(tail, 10)};
  uint64_t limit = end;
  if (end >= zip::kEnd64LocatorSize) {
    const uint64_t locator = end - zip::kEnd64LocatorSize;
    const auto bytes = source_->view(locator, zip::kEnd64LocatorSize);
    if (read_at<uint32_t>(bytes, 0) == zip::kEnd64Locator) {
      limit = read_at<uint64_t>(bytes, 8);
      found = read_zip64_end(limit, locator);
    }
  }
  if (found.offset > limit || found.size > limit - found.offset) {
    fail(join_text("its directory of ", found.size, " bytes at ", found.offset,
                   " is not inside the file"));
  }
  return found;
}

uint64_t ZipReader::find_end() const {
  const uint64_t size = source_->size();
  if (size < zip::kEndSize) fail(join_text("it has only ", size, " bytes"));
  // A comment of at most 64 KiB may follow the end record. Most archives have none, and all of a
  // large tail need not be read.
  for (const uint64_t comment : {uint64_t{0}, uint64_t{zip::kMax16}}) {
    const uint64_t first = size - std::min<uint64_t>(size, zip::kEndSize + comment);
    const auto tail = source_->view(first, size - first);
    for (size_t end = tail.size() - zip::kEndSize + 1; end-- > 0;) {
      if (read_at<uint32_t>(tail, end) == zip::kEnd &&
          end + zip::kEndSize + read_at<uint16_t>(tail, end + 20) == tail.size()) {
        return first + end;
      }
    }
  }
  fail("the end of its directory is missing (truncated, or no zip file)");
}

ZipReader::Directory ZipReader::read_zip64_end(uint64_t at, uint64_t locator) const {
  const bool inside = at <= locator && locator - at >= zip::kEnd64Size;
  const auto bytes = inside ? source_->view(at, zip::kEnd64Size) : std::span<const std::byte>();
  if (!inside || read_at<uint32_t>(bytes, 0) != zip::kEnd64) {
    fail("its ZIP64 end record is missing");
  }
  return {.offset = read_at<uint64_t>(bytes, 48),
          .size = read_at<uint64_t>(bytes, 40),
          .count = read_at<uint64_t>(bytes, 32)};
}

void ZipReader::read_directory(const Directory& directory) {
  constexpr uint64_t kMostBytes = uint64_t{256} << 20;
  if (directory.size > kMostBytes) {
    fail(join_text("a directory of ", directory.size, " bytes, where at most ", kMostBytes,
                   " are read"));
  }
  const auto viewed = source_->view(directory.offset, directory.size);
  const std::vector<std::byte> copy(viewed.begin(), viewed.end());  // local headers are viewed next
  const std::span<const std::byte> entries(copy);
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
  const auto outside = [&] { fail(join_text("record ", record.name, " is not inside the file")); };
  if (header > limit || limit - header < zip::kLocalHeaderSize) outside();
  const auto fields = source_->view(header, zip::kLocalHeaderSize);
  const auto start = read_at<uint32_t>(fields, 0);
  const auto name_size = read_at<uint16_t>(fields, 26);
  const auto extra_size = read_at<uint16_t>(fields, 28);
  const uint64_t head = zip::kLocalHeaderSize + uint64_t{name_size} + extra_size;
  if (limit - header < head || limit - header - head < record.size) outside();
  if (start != zip::kLocalHeader ||
      as_text(source_->view(header + zip::kLocalHeaderSize, name_size)) != record.name) {
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
  const auto viewed = [&] { return source_->view(record.offset, record.size); };
  if (file_ != nullptr) return viewed();
  auto found = read_.find({record.offset, record.size});
  if (found == read_.end()) {
    const auto bytes = viewed();
    found =
        read_
            .emplace(std::pair(record.offset, record.size), std::vector(bytes.begin(), bytes.end()))
            .first;
  }
  return found->second;
}

std::string_view ZipReader::text(const ZipRecord& record) const { return as_text(bytes(record)); }

void ZipReader::verify(const ZipRecord& record) const {
  const uint32_t found = file_ != nullptr ? crc32_of(*file_, bytes(record)) : crc32(bytes(record));
  require(found == record.crc, path(), ": record ", record.name,
          " is damaged: its contents do not have the checksum that was stored with them");
}

}  // namespace tessera::files
