#include "tessera/checkpoint/stored/reader.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/dcp/check.h"
#include "tessera/dcp/rank_metadata.h"
#include "tessera/files/crc32.h"
#include "tessera/files/description_file.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string_view text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
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

/// Of all items of tensors.
uint64_t item_bytes(const dcp::Metadata& metadata) {
  uint64_t out = 0;
  for (const auto& [name, entry] : metadata.entries) {
    const auto* tensor = std::get_if<dcp::TensorEntry>(&entry);
    if (tensor == nullptr) continue;
    for (const auto& chunk : tensor->chunks) out += chunk.item.length;
  }
  return out;
}

}  // namespace

CheckpointReader::CheckpointReader(const fs::path& directory, Options options)
    : directory_(directory), options_(options) {
  const fs::path sums = directory / dcp::kChecksumFile;
  std::error_code none;
  if (fs::exists(fs::symlink_status(sums, none))) {
    has_checksums_ = true;
    const auto file =
        files::InputFile::open(dcp::file_inside(directory, std::string(dcp::kChecksumFile)));
    const auto bytes = files::read_whole(*file, files::most_description_bytes(sums));
    digest_ = std::to_string(files::crc32(bytes));
    if (options_.verify) checksums_ = dcp::read_checksums(text_of(bytes), sums.string());
  }
  description_ = directory / dcp::kMetadataFile;
  if (fs::exists(description_)) {
    metadata_ = read_description(std::string(dcp::kMetadataFile));
    return;
  }
  const auto names = dcp::rank_metadata_files(directory);
  require(!names.empty(), directory.string(), " is not a checkpoint: it has no ",
          dcp::kMetadataFile);
  description_ = directory / names.begin()->second;
  for (const auto& [rank, name] : names) ranks_.emplace(rank, read_description(name));
  metadata_ = dcp::merge_rank_metadata(ranks_, options.rank, directory.string());
}

dcp::Metadata CheckpointReader::read_description(const std::string& name) {
  dcp::VerifiedFile& file = open(name);
  const auto bytes =
      files::read_whole(*file.file(), files::most_description_bytes(directory_ / name));
  digest_ += join_text(" ", files::crc32(bytes));
  file.verify(0, file.file()->size());
  return dcp::read_metadata(bytes, (directory_ / name).string());
}

dcp::VerifiedFile& CheckpointReader::open(const std::string& name) {
  const auto found = files_.find(name);
  if (found != files_.end()) return found->second;
  auto file = files::InputFile::open(dcp::file_inside(directory_, name));
  std::optional<dcp::FileSums> sums;
  if (has_checksums_ && options_.verify) {
    const auto known = checksums_.find(name);
    require(known != checksums_.end(), (directory_ / name).string(), " has no checksum in ",
            dcp::kChecksumFile, ": it is of another checkpoint");
    sums = known->second;
  }
  return files_.try_emplace(name, std::move(file), std::move(sums)).first->second;
}

StoredElements CheckpointReader::find(const std::string& name, const dcp::Chunk& chunk,
                                      const Box& part) {
  try {
    return find_part(name, chunk, part);
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
  constexpr uint64_t kPart = uint64_t{256} << 10;  // stays in a core's cache
  std::vector<std::byte> buffer(std::min(kPart, item.record_size));
  uint32_t sum = 0;
  for (uint64_t at = 0; at < item.record_size; at += kPart) {
    const auto part = std::span(buffer).first(std::min(kPart, item.record_size - at));
    file.file()->read(item.record_offset + at, part);
    sum = files::crc32(part, sum);
  }
  require(sum == item.record_crc, file.file()->path(), ": ", name,
          " is damaged: its bytes do not have the checksum that was stored with them");
}

StoredElements CheckpointReader::find_part(const std::string& name, const dcp::Chunk& chunk,
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
  return {file.file(), item.dtype, offset, part.shape(), item.strides};
}

files::PlainValue CheckpointReader::read_value(const std::string& name,
                                               const dcp::ValueEntry& entry) {
  dcp::VerifiedFile& file = open(entry.item.file);
  try {
    const uint64_t size = file.file()->size();
    if (entry.item.offset <= size && entry.item.length <= size - entry.item.offset) {
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
  for (const auto& [name, entry] : metadata_.entries) {
    const auto* tensor = std::get_if<dcp::TensorEntry>(&entry);
    if (tensor != nullptr) dcp::check_chunks(name, *tensor, description_.string());
  }
  std::vector<const dcp::Metadata*> described;  // copies that each rank saved on its own too
  for (const auto& [rank, metadata] : ranks_) described.push_back(&metadata);
  if (described.empty()) described.push_back(&metadata_);
  const bool by_items = checksums_.empty();  // of PyTorch: each item has its own
  for (const auto* metadata : described) total += by_items ? item_bytes(*metadata) : 0;
  for (const auto* metadata : described) {
    verify_items(*metadata, [&](uint64_t bytes) { count(by_items ? bytes : 0); });
  }
}

void CheckpointReader::verify_items(const dcp::Metadata& metadata,
                                    const std::function<void(uint64_t)>& count) {
  for (const auto& [name, entry] : metadata.entries) {
    if (const auto* value = std::get_if<dcp::ValueEntry>(&entry)) {
      verify_value(name, *value);
      continue;
    }
    for (const auto& chunk : std::get<dcp::TensorEntry>(entry).chunks) {
      if (chunk.box.numel() > 0) find(name, chunk, chunk.box);
      count(chunk.item.length);
    }
  }
}

}  // namespace tessera::checkpoint
