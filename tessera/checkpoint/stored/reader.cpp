#include "tessera/checkpoint/stored/reader.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/dcp/check.h"
#include "tessera/files/crc32.h"
#include "tessera/files/release_pages.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string_view text_of(const files::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// The bytes that `part` of the item's tensor touches: from its first element to its last.
std::pair<uint64_t, uint64_t> touched(const dcp::TensorItem& item, const dcp::Chunk& chunk,
                                      const Box& part) {
  uint64_t first = 0;
  uint64_t last = 0;
  for (size_t d = 0; d < part.begin.size(); ++d) {
    const auto stride = static_cast<uint64_t>(item.strides[d]);
    first += static_cast<uint64_t>(part.begin[d] - chunk.box.begin[d]) * stride;
    last += static_cast<uint64_t>(part.end[d] - chunk.box.begin[d] - 1) * stride;
  }
  const auto width = static_cast<uint64_t>(dtype_bytes(item.dtype));
  return {item.offset + first * width, (last - first + 1) * width};
}

}  // namespace

CheckpointReader::CheckpointReader(const fs::path& directory, Options options)
    : directory_(directory), options_(options) {
  const fs::path path = directory / dcp::kMetadataFile;
  require(fs::exists(path), directory.string(), " is no checkpoint: it has no ",
          dcp::kMetadataFile);
  const fs::path sums = directory / dcp::kChecksumFile;
  std::error_code none;
  if (fs::exists(fs::symlink_status(sums, none))) {
    has_checksums_ = true;
    const auto mapped =
        files::MappedFile::open(dcp::file_inside(directory, std::string(dcp::kChecksumFile)));
    digest_ = std::to_string(files::crc32(mapped->bytes()));
    if (options_.verify) checksums_ = dcp::read_checksums(text_of(*mapped), sums.string());
  }
  dcp::VerifiedFile& file = open(std::string(dcp::kMetadataFile));
  digest_ += join_text(" ", files::crc32(file.file()->bytes()));
  file.verify(0, file.file()->bytes().size());
  metadata_ = dcp::read_metadata(file.file()->bytes(), path.string());
}

dcp::VerifiedFile& CheckpointReader::open(const std::string& name) {
  const auto found = files_.find(name);
  if (found != files_.end()) return found->second;
  auto mapped = files::MappedFile::open(dcp::file_inside(directory_, name));
  std::optional<dcp::FileSums> sums;
  if (has_checksums_ && options_.verify) {
    const auto known = checksums_.find(name);
    require(known != checksums_.end(), (directory_ / name).string(), " has no checksum in ",
            dcp::kChecksumFile, ": it is of another checkpoint");
    sums = known->second;
  }
  return files_.try_emplace(name, std::move(mapped), std::move(sums)).first->second;
}

at::Tensor CheckpointReader::read(const std::string& name, const dcp::Chunk& chunk,
                                  const Box& part) {
  try {
    return read_part(name, chunk, part);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(join_text(name, ": ", error.what()));
  }
}

void CheckpointReader::prefetch(const std::string& name, const dcp::Chunk& chunk, const Box& part) {
  try {
    const auto [offset, length] = touched(open_item(name, chunk).item, chunk, part);
    const auto& file = open(chunk.item.file).file();
    file->prefetch(file->bytes().subspan(offset, length));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(join_text(name, ": ", error.what()));
  }
}

CheckpointReader::OpenedItem& CheckpointReader::open_item(const std::string& name,
                                                          const dcp::Chunk& chunk) {
  const dcp::VerifiedFile& file = open(chunk.item.file);
  const auto key = std::pair(chunk.item.file, chunk.item.offset);
  auto found = items_.find(key);
  if (found == items_.end()) {
    found = items_.emplace(key, OpenedItem{dcp::read_tensor_item(file.file(), chunk.item)}).first;
  }
  const dcp::TensorItem& item = found->second.item;
  require(
      item.sizes == chunk.box.shape(), file.file()->path(), " at byte ", chunk.item.offset,
      ": an item of ", [&] { return shape_text(item.sizes); }, " where a chunk of ", name,
      " is said to be");
  return found->second;
}

void CheckpointReader::verify_item(const std::string& name, const dcp::VerifiedFile& file,
                                   const dcp::TensorItem& item) {
  constexpr size_t kPart = size_t{1} << 20;
  auto left = file.file()->bytes().subspan(item.record_offset, item.record_size);
  uint32_t sum = 0;
  while (!left.empty()) {
    const auto part = left.first(std::min(left.size(), kPart));
    sum = files::crc32(part, sum);
    files::release_pages(part);
    left = left.subspan(part.size());
  }
  require(sum == item.record_crc, file.file()->path(), ": ", name,
          " is damaged: its bytes do not have the checksum that was stored with them");
}

at::Tensor CheckpointReader::read_part(const std::string& name, const dcp::Chunk& chunk,
                                       const Box& part) {
  OpenedItem& opened = open_item(name, chunk);
  const dcp::TensorItem& item = opened.item;
  dcp::VerifiedFile& file = open(chunk.item.file);
  const auto [offset, length] = touched(item, chunk, part);
  if (file.has_sums()) {
    file.verify(offset, length);
  } else if (options_.verify && !opened.verified) {
    verify_item(name, file, item);
    opened.verified = true;
  }
  const auto mapped = file.file();
  return at::from_blob(
      mapped->writable_bytes().data() + offset, part.shape(), item.strides, [mapped](void*) {},
      at::TensorOptions(static_cast<at::ScalarType>(item.dtype)));
}

files::PlainValue CheckpointReader::read_value(const std::string& name,
                                               const dcp::ValueEntry& entry) {
  dcp::VerifiedFile& file = open(entry.item.file);
  try {
    if (entry.item.offset <= file.file()->bytes().size() &&
        entry.item.length <= file.file()->bytes().size() - entry.item.offset) {
      file.verify(entry.item.offset, entry.item.length);
    }
    return dcp::read_value_item(file.file(), entry.item);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(join_text(name, ": ", error.what()));
  }
}

void CheckpointReader::verify_value(const std::string& name, const dcp::ValueEntry& entry) {
  try {
    dcp::verify_value_item(open(entry.item.file).file(), entry.item);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(join_text(name, ": ", error.what()));
  }
}

void CheckpointReader::verify_all(const OnProgress& on_progress) {
  constexpr uint64_t kStep = uint64_t{16} << 20;
  uint64_t total = 0;
  uint64_t done = 0;
  const auto count = [&](uint64_t bytes) {
    done += bytes;
    if (on_progress) on_progress(done, total);
  };
  for (const auto& [name, sums] : checksums_) total += sums.size;
  for (const auto& [name, sums] : checksums_) {
    dcp::VerifiedFile& file = open(name);
    for (uint64_t at = 0; at < sums.size; at += kStep) {
      const uint64_t length = std::min(kStep, sums.size - at);
      file.verify(at, length);
      count(length);
    }
  }
  const bool by_items = checksums_.empty();  // of PyTorch: each item has its own
  for (const auto& [name, entry] : metadata_.entries) {
    const auto* tensor = std::get_if<dcp::TensorEntry>(&entry);
    for (size_t i = 0; by_items && tensor != nullptr && i < tensor->chunks.size(); ++i) {
      total += tensor->chunks[i].item.length;
    }
  }
  for (const auto& [name, entry] : metadata_.entries) {
    if (const auto* value = std::get_if<dcp::ValueEntry>(&entry)) {
      verify_value(name, *value);
      continue;
    }
    const auto& tensor = std::get<dcp::TensorEntry>(entry);
    dcp::check_chunks(name, tensor, (directory_ / dcp::kMetadataFile).string());
    for (const auto& chunk : tensor.chunks) {
      if (chunk.box.numel() > 0) read(name, chunk, chunk.box);
      if (by_items) count(chunk.item.length);
    }
  }
}

}  // namespace tessera::checkpoint
