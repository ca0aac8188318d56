#include "tessera/files/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/base/errors.h"
#include "tessera/files/json_cursor.h"
#include "tessera/files/output_file.h"

namespace tessera::files {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the format's own library
constexpr uint64_t kHeaderAlignment = 8;

struct Name {
  DType dtype;
  std::string_view name;
};
constexpr std::array<Name, 19> kNames = {{{DType::f64, "F64"},
                                          {DType::f32, "F32"},
                                          {DType::f16, "F16"},
                                          {DType::bf16, "BF16"},
                                          {DType::i64, "I64"},
                                          {DType::i32, "I32"},
                                          {DType::i16, "I16"},
                                          {DType::i8, "I8"},
                                          {DType::u64, "U64"},
                                          {DType::u32, "U32"},
                                          {DType::u16, "U16"},
                                          {DType::u8, "U8"},
                                          {DType::boolean, "BOOL"},
                                          {DType::f8_e4m3fn, "F8_E4M3"},
                                          {DType::f8_e5m2, "F8_E5M2"},
                                          {DType::f8_e4m3fnuz, "F8_E4M3FNUZ"},
                                          {DType::f8_e5m2fnuz, "F8_E5M2FNUZ"},
                                          {DType::f8_e8m0fnu, "F8_E8M0"},
                                          {DType::c64, "C64"}}};

std::string_view format_name(DType dtype, std::string_view tensor) {
  const auto found = std::ranges::find(kNames, dtype, &Name::dtype);
  if (found == kNames.end()) {
    throw NotSupported(join_text("tensor ", tensor, " is ", dtype_name(dtype),
                                 ", which the safetensors format does not have"));
  }
  return found->name;
}

/// The size of a tensor in bytes; nullopt if that overflows or a size is negative.
std::optional<uint64_t> bytes_of(DType dtype, std::span<const int64_t> shape) {
  auto bytes = static_cast<uint64_t>(dtype_bytes(dtype));
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) return {};
  }
  return bytes;
}

SafetensorsEntry entry_from_json(std::string_view name, const JsonCursor& json, uint64_t start,
                                 uint64_t limit) {
  SafetensorsEntry entry{.name = std::string(name), .shape = {}};
  const std::string dtype = json.text("dtype");
  const auto found = std::ranges::find(kNames, dtype, &Name::name);
  if (found == kNames.end())
    json.at("dtype").fail(join_text("is '", dtype, "', which is not a type"));
  entry.dtype = found->dtype;
  for (const JsonCursor size : json.at("shape")) entry.shape.push_back(size.integer());
  const JsonCursor offsets = json.at("data_offsets");
  if (offsets.size() != 2) offsets.fail("is not [begin, end]");
  const int64_t begin = offsets.at(size_t{0}).integer();
  const int64_t end = offsets.at(size_t{1}).integer();
  if (begin < 0 || end < begin || static_cast<uint64_t>(end) > limit - start) {
    offsets.fail(join_text("is [", begin, ", ", end, "], outside of the file"));
  }
  entry.offset = start + static_cast<uint64_t>(begin);
  entry.size = static_cast<uint64_t>(end - begin);
  if (bytes_of(entry.dtype, entry.shape) != entry.size) {
    json.fail(join_text(
        "is ", dtype, " ", [&] { return shape_text(entry.shape); }, " in ", entry.size, " bytes"));
  }
  return entry;
}

/// Bytes that belong to no tensor, or to two, may hide data or indicate a broken writer.
void check_cover(const std::vector<SafetensorsEntry>& entries, const std::string& path,
                 uint64_t start, uint64_t end) {
  std::vector<const SafetensorsEntry*> sorted;
  for (const auto& entry : entries) sorted.push_back(&entry);
  std::ranges::sort(sorted, {}, [](const auto* e) { return std::pair(e->offset, e->size); });
  uint64_t at = start;
  for (const auto* entry : sorted) {
    require(entry->offset == at, path, ": tensor ", entry->name, " starts at byte ", entry->offset,
            ", the one before it ends at ", at);
    at += entry->size;
  }
  require(at == end, path, ": ", end - at, " bytes at its end belong to no tensor");
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(InputFile::open(path)) {
  const uint64_t size = file_->size();
  const std::string& name = file_->path();
  require(size >= kLengthBytes, name, " is not a safetensors file: it has ", size, " bytes");
  uint64_t length = 0;
  file_->read(0, std::as_writable_bytes(std::span(&length, 1)));
  require(length <= kMaxHeader && length <= size - kLengthBytes, name,
          " is not a safetensors file: a header of ", length, " bytes in a file of ", size);
  std::string text(length, '\0');
  file_->read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  const std::string document = join_text(name, ": header");
  const Json json = parse_json(text, document);
  const uint64_t start = kLengthBytes + length;
  JsonCursor(json, document).each_member([&](std::string_view key, const JsonCursor& value) {
    if (key == "__metadata__") {
      if (value.is_null()) return;
      value.each_member([&](std::string_view k, const JsonCursor& v) {
        metadata_.emplace(std::string(k), v.text());
      });
      return;
    }
    by_name_.emplace(std::string(key), entries_.size());
    entries_.push_back(entry_from_json(key, value, start, size));
  });
  check_cover(entries_, name, start, size);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

std::vector<std::byte> SafetensorsFile::bytes(const SafetensorsEntry& entry) const {
  std::vector<std::byte> out(entry.size);
  file_->read(entry.offset, out);
  return out;
}

SafetensorsLayout layout_safetensors(std::vector<SafetensorsEntry> tensors,
                                     const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) {
    for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  }
  uint64_t at = 0;
  for (auto& tensor : tensors) {
    require(!header.contains(tensor.name), "tensor ", tensor.name, " occurs twice");
    const auto bytes = bytes_of(tensor.dtype, tensor.shape);
    require(bytes.has_value(), "tensor ", tensor.name,
            " has no size: ", [&] { return shape_text(tensor.shape); });
    header[tensor.name] = {{"dtype", format_name(tensor.dtype, tensor.name)},
                           {"shape", tensor.shape},
                           {"data_offsets", Json::array({at, at + *bytes})}};
    tensor.offset = at;
    tensor.size = *bytes;
    at += *bytes;
  }
  std::string text = header.dump();
  text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
  const uint64_t length = text.size();
  SafetensorsLayout out;
  out.start.assign(reinterpret_cast<const char*>(&length), kLengthBytes);
  out.start += text;
  for (auto& tensor : tensors) tensor.offset += out.start.size();
  out.size = out.start.size() + at;
  out.entries = std::move(tensors);
  return out;
}

void write_safetensors(const std::filesystem::path& path,
                       const std::vector<SafetensorsTensor>& tensors,
                       const SafetensorsOptions& options) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& tensor : tensors) {
    entries.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  const SafetensorsLayout layout = layout_safetensors(std::move(entries), options.metadata);
  OutputFile file(path);
  file.write(layout.start);
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].write([&](std::span<const std::byte> part) { file.write(part); });
    ensure(file.position() == layout.entries[i].offset + layout.entries[i].size,
           "a tensor wrote more or fewer bytes than it has");
  }
  file.close({.sync = options.sync});
}

}  // namespace tessera::files
