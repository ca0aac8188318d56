#include "tessera/files/zip_writer.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tessera/base/errors.h"
#include "tessera/files/crc32.h"
#include "tessera/files/zip_format.h"

namespace tessera::files {
namespace {

static_assert(std::endian::native == std::endian::little);
constexpr uint64_t kRecordAlignment = 64;

template <typename T>
void put(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

bool is_wide(uint64_t value) { return value >= zip::kMax32; }
uint32_t narrow(uint64_t value) {
  return is_wide(value) ? zip::kMax32 : static_cast<uint32_t>(value);
}

/// The ZIP64 extra field, or empty if 32 bits suffice.
std::string zip64_extra(uint64_t size, uint64_t header) {
  std::string values;
  if (is_wide(size)) {
    put<uint64_t>(values, size);
    put<uint64_t>(values, size);  // stored without compression
  }
  if (is_wide(header)) put<uint64_t>(values, header);
  if (values.empty()) return values;
  std::string field;
  put<uint16_t>(field, zip::kExtraZip64);
  put<uint16_t>(field, static_cast<uint16_t>(values.size()));
  return field + values;
}

uint16_t flags_of(uint64_t size) {
  return static_cast<uint16_t>(zip::kFlagUtf8 | (size > 0 ? zip::kFlagDataDescriptor : 0));
}

}  // namespace

void ZipWriter::add(std::string_view name, std::span<const std::byte> contents) {
  begin(name, contents.size());
  write(contents);
}

void ZipWriter::add(std::string_view name, std::string_view contents) {
  add(name, std::as_bytes(std::span(contents.data(), contents.size())));
}

void ZipWriter::copy(const ZipReader& from, const ZipRecord& record) {
  begin(record.name, record.size);
  write(from.bytes(record));
  copied_crc_ = record.crc;
}

void ZipWriter::begin(std::string_view name, uint64_t size) {
  begin_record(name, size);
  left_ = size;
  open_ = true;
}

ZipWriter::Slot ZipWriter::reserve(std::string_view name, uint64_t size) {
  begin_record(name, size);
  entries_.back().reserved = size > 0;
  if (size == 0) return {};
  const uint64_t offset = file_.skip(size);
  file_.skip(descriptor_of(entries_.back()).size());
  return {.entry = entries_.size() - 1, .offset = offset, .left = size, .crc = 0};
}

void ZipWriter::write(Slot& slot, std::span<const std::byte> part) {
  ensure(part.size() <= slot.left, "more bytes than were reserved for the record");
  if (part.empty()) return;
  slot.crc = crc32(part, slot.crc);
  file_.write_at(slot.offset, part);
  slot.offset += part.size();
  slot.left -= part.size();
  if (slot.left > 0) return;
  Entry& entry = entries_[slot.entry];
  entry.crc = slot.crc;
  entry.reserved = false;
  const std::string descriptor = descriptor_of(entry);
  file_.write_at(slot.offset, std::as_bytes(std::span(descriptor)));
}

void ZipWriter::begin_record(std::string_view name, uint64_t size) {
  end_record();
  require(name.size() <= zip::kMax16, "a record's name of ", name.size(), " bytes is too long");
  Entry entry{.name = std::string(name), .header = position(), .size = size, .crc = 0};
  std::string extra = zip64_extra(size, entry.header);
  const uint64_t start = entry.header + zip::kLocalHeaderSize + name.size() + extra.size() + 4;
  const uint64_t gap = (kRecordAlignment - start % kRecordAlignment) % kRecordAlignment;
  extra += "FB";
  put<uint16_t>(extra, static_cast<uint16_t>(gap));
  extra.append(gap, 'Z');

  std::string header;
  put<uint32_t>(header, zip::kLocalHeader);
  put<uint16_t>(header, 0);  // version
  put<uint16_t>(header, flags_of(size));
  header.append(2 + 4, '\0');      // stored; no time
  header.append(4 + 4 + 4, '\0');  // checksum and sizes follow the contents
  put<uint16_t>(header, static_cast<uint16_t>(name.size()));
  put<uint16_t>(header, static_cast<uint16_t>(extra.size()));
  file_.write(header);
  file_.write(name);
  file_.write(extra);
  entries_.push_back(std::move(entry));
}

void ZipWriter::write(std::span<const std::byte> part) {
  ensure(open_ && part.size() <= left_, "more bytes than the record was begun with");
  entries_.back().crc = crc32(part, entries_.back().crc);
  file_.write(part);
  left_ -= part.size();
}

void ZipWriter::end_record() {
  if (!open_) return;
  ensure(left_ == 0, "fewer bytes than the record was begun with");
  Entry& entry = entries_.back();
  if (copied_crc_) entry.crc = *copied_crc_;
  copied_crc_.reset();
  open_ = false;
  file_.write(descriptor_of(entry));
}

std::string ZipWriter::descriptor_of(const Entry& entry) {
  std::string descriptor;
  if (entry.size == 0) return descriptor;
  put<uint32_t>(descriptor, zip::kDataDescriptor);
  put<uint32_t>(descriptor, entry.crc);
  if (is_wide(entry.size) || is_wide(entry.header)) {
    put<uint64_t>(descriptor, entry.size);
    put<uint64_t>(descriptor, entry.size);
  } else {
    put<uint32_t>(descriptor, static_cast<uint32_t>(entry.size));
    put<uint32_t>(descriptor, static_cast<uint32_t>(entry.size));
  }
  return descriptor;
}

void ZipWriter::write_directory_entry(const Entry& entry) {
  const std::string extra = zip64_extra(entry.size, entry.header);
  std::string out;
  put<uint32_t>(out, zip::kDirectoryEntry);
  put<uint32_t>(out, 0);  // versions
  put<uint16_t>(out, flags_of(entry.size));
  out.append(2 + 4, '\0');  // stored; no time
  put<uint32_t>(out, entry.crc);
  put<uint32_t>(out, narrow(entry.size));
  put<uint32_t>(out, narrow(entry.size));
  put<uint16_t>(out, static_cast<uint16_t>(entry.name.size()));
  put<uint16_t>(out, static_cast<uint16_t>(extra.size()));
  out.append(2 + 2 + 2 + 4, '\0');  // no comment, disk 0, no attributes
  put<uint32_t>(out, narrow(entry.header));
  file_.write(out);
  file_.write(entry.name);
  file_.write(extra);
}

void ZipWriter::finish(OutputFile::CloseOptions options) {
  end_record();
  const uint64_t start = position();
  for (const auto& entry : entries_) {
    ensure(!entry.reserved, "fewer bytes than were reserved for the record " + entry.name);
    write_directory_entry(entry);
  }
  const uint64_t end = position();
  const uint64_t count = entries_.size();

  std::string out;
  put<uint32_t>(out, zip::kEnd64);
  put<uint64_t>(out, zip::kEnd64Size - 12);
  put<uint16_t>(out, 0x031E);  // made by Unix, 3.0
  put<uint16_t>(out, 0x002D);  // needs ZIP64
  out.append(4 + 4, '\0');     // disk 0
  put<uint64_t>(out, count);
  put<uint64_t>(out, count);
  put<uint64_t>(out, end - start);
  put<uint64_t>(out, start);
  put<uint32_t>(out, zip::kEnd64Locator);
  put<uint32_t>(out, 0);
  put<uint64_t>(out, end);
  put<uint32_t>(out, 1);  // one disk
  put<uint32_t>(out, zip::kEnd);
  put<uint32_t>(out, 0);
  const auto count16 = static_cast<uint16_t>(std::min<uint64_t>(count, zip::kMax16));
  put<uint16_t>(out, count16);
  put<uint16_t>(out, count16);
  put<uint32_t>(out, narrow(end - start));
  put<uint32_t>(out, narrow(start));
  put<uint16_t>(out, 0);  // no comment
  file_.write(out);
  if (owned_ != nullptr) owned_->close(options);
}

}  // namespace tessera::files
