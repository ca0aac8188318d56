#include "tessera/program/archive.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/base/parallel_for.h"

namespace tessera::program {
namespace {

/// The number of bytes of the storage up to the tensor's last element.
uint64_t reach_of(const TensorMeta& meta, const std::string& name) {
  const auto number = [&](const Size& size) {
    require(size.is_number() && size.number() >= 0, "tensor ", name, " has a size of ",
            size.to_text());
    return static_cast<uint64_t>(size.number());
  };
  require(meta.sizes.size() == meta.strides.size(), "tensor ", name, " has ", meta.sizes.size(),
          " sizes and ", meta.strides.size(), " strides");
  uint64_t last = number(meta.storage_offset);
  bool overflow = false;
  for (size_t i = 0; i < meta.sizes.size(); ++i) {
    const uint64_t size = number(meta.sizes[i]);
    if (size == 0) return 0;
    uint64_t step = 0;
    overflow = overflow || __builtin_mul_overflow(size - 1, number(meta.strides[i]), &step) ||
               __builtin_add_overflow(last, step, &last);
  }
  uint64_t bytes = 0;
  overflow = overflow || __builtin_add_overflow(last, 1, &last) ||
             __builtin_mul_overflow(last, static_cast<uint64_t>(dtype_bytes(meta.dtype)), &bytes);
  require(!overflow, "tensor ", name, " is larger than any file");
  return bytes;
}

}  // namespace

std::shared_ptr<const Archive> Archive::open(const std::filesystem::path& path) {
  return std::shared_ptr<const Archive>(new Archive(path));
}

Archive::Archive(const std::filesystem::path& path) : zip_(path) {
  require(!zip_.records().empty(), zip_.path(), " is an empty archive");
  const std::string& first = zip_.records().front().name;
  root_ = first.substr(0, first.find('/') + 1);
  for (const auto& record : zip_.records()) {
    require(!root_.empty() && record.name.starts_with(root_), zip_.path(), ": record ", record.name,
            " is not below the archive's directory '", root_, "'");
  }
  require(required_text("archive_format") == "pt2", zip_.path(),
          " is not an exported program: its "
          "format is '",
          required_text("archive_format"), "', not 'pt2'");
  require(required_text("archive_version") == "0", zip_.path(), " has version ",
          required_text("archive_version"), " of the archive format; this library reads version 0");
  if (record("byteorder") != nullptr) {
    require(required_text("byteorder") == "little", zip_.path(), " was written in byte order '",
            required_text("byteorder"), "'; this machine is little-endian");
  }
}

const files::ZipRecord* Archive::record(std::string_view name) const {
  return zip_.find(root_ + std::string(name));
}

std::string_view Archive::required_text(std::string_view name) const {
  const auto* found = record(name);
  require(found != nullptr, path(), " is not an exported program: it has no record ", name,
          " (torch.export.save writes it)");
  zip_.verify(*found);
  return zip_.text(*found);
}

void Archive::verify_contents() const {
  const auto& records = zip_.records();
  parallel_for(records.size(), [&](size_t i) { zip_.verify(records[i]); });
}

std::vector<std::string> Archive::models() const {
  constexpr std::string_view kFolder = "models/";
  constexpr std::string_view kEnd = ".json";
  std::vector<std::string> out;
  for (const auto& record : zip_.records()) {
    std::string_view name = std::string_view(record.name).substr(root_.size());
    if (!name.starts_with(kFolder) || !name.ends_with(kEnd)) continue;
    name.remove_prefix(kFolder.size());
    name.remove_suffix(kEnd.size());
    out.emplace_back(name);
  }
  return out;
}

ExportedProgram Archive::read_program(std::string_view model) const {
  const std::string name = join_text("models/", model, ".json");
  if (record(name) == nullptr) {
    const auto others = models();
    require(others.empty(), path(), " has no program '", model, "' but ", others.size(),
            " others, as ", [&] { return others.front(); });
  }
  return parse_program(
      {.model = required_text(name),
       .weights_config = required_text(join_text("data/weights/", model, "_weights_config.json")),
       .constants_config =
           required_text(join_text("data/constants/", model, "_constants_config.json"))},
      path());
}

std::span<const std::byte> Archive::bytes_of(const Payload& payload,
                                             std::string_view folder) const {
  const std::string name = join_text(folder, payload.path_name);
  const auto* found = record(name);
  require(found != nullptr, path(), ": ", payload.name, " is in record ", name,
          ", which is missing");
  if (payload.meta && !payload.use_pickle) {
    const uint64_t reach = reach_of(*payload.meta, payload.name);
    require(reach <= found->size, path(), ": ", payload.name, " is ", *payload.meta, ", ", reach,
            " bytes, but its record ", name, " has ", found->size);
  }
  return zip_.bytes(*found);
}

std::span<const std::byte> Archive::bytes_of_weight(const Payload& payload) const {
  return bytes_of(payload, "data/weights/");
}

std::span<const std::byte> Archive::bytes_of_constant(const Payload& payload) const {
  return bytes_of(payload, "data/constants/");
}

}  // namespace tessera::program
