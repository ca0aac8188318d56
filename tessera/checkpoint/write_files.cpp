#include "tessera/checkpoint/write_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/chunks.h"
#include "tessera/checkpoint/stored/tensor_bytes.h"
#include "tessera/dcp/checksums.h"
#include "tessera/dcp/items.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uint64_t kItemAlignment = 64;
/// Bytes between two calls of on_progress, at most.
constexpr uint64_t kProgress = uint64_t{1} << 20;

/// Starts the item where its elements are aligned in memory when the file is mapped.
void align(files::OutputFile& file) {
  static constexpr std::byte kZeros[kItemAlignment] = {};
  const uint64_t over = file.position() % kItemAlignment;
  if (over != 0) file.write(std::span(kZeros).first(kItemAlignment - over));
}

/// Of a small file, written and synced.
dcp::FileSums write_small_file(const fs::path& path, std::string_view contents) {
  files::BlockSums sums;
  files::OutputFile file(path, {.sums = &sums});
  file.write(contents);
  file.close({.sync = true});
  return {contents.size(), {sums.values().begin(), sums.values().end()}};
}

}  // namespace

std::vector<StateValue> my_parts(const State& state, const StatePlan& plan) {
  std::vector<StateValue> out;
  for (const auto& write : plan.mine) {
    const PlannedEntry& entry = plan.entries[write.entry];
    const StateValue& value = state.at(entry.name);
    if (entry.is_tensor) {
      out.emplace_back(tensor_box(std::get<at::Tensor>(value), write.box));
    } else {
      out.push_back(value);
    }
  }
  return out;
}

std::string write_my_file(const StatePlan& plan, const std::vector<StateValue>& parts, int rank,
                          const fs::path& directory, const OnProgress& on_progress) {
  std::vector<ItemContents> items;
  for (const auto& part : parts) {
    if (const auto* tensor = std::get_if<at::Tensor>(&part)) {
      items.push_back({[tensor](const auto& sink) { visit_bytes(*tensor, sink); },
                       static_cast<uint64_t>(tensor->nbytes())});
    } else {
      items.push_back({std::get<PlainValue>(part)});
    }
  }
  return write_items_file(plan, items, rank, directory, on_progress);
}

std::string write_items_file(const StatePlan& plan, const std::vector<ItemContents>& contents,
                             int rank, const fs::path& directory, const OnProgress& on_progress) {
  const std::string name = join_text("__", rank, "_0.distcp");
  uint64_t total = 0;
  for (const auto& item : contents) total += item.bytes;
  uint64_t done = 0;
  uint64_t reported = 0;
  const auto report = [&] {
    if (on_progress && done > reported) on_progress(done, total);
    reported = done;
  };
  files::BlockSums sums;
  files::OutputFile file(directory / name, {.sums = &sums, .direct = true, .keep_blocks = true});
  Json items = Json::array();
  for (size_t i = 0; i < plan.mine.size(); ++i) {
    const auto& write = plan.mine[i];
    align(file);
    dcp::StoredItem item;
    if (const auto* value = std::get_if<PlainValue>(&contents[i].contents)) {
      item = dcp::write_value_item(file, name, *value);
    } else {
      const auto& visit = std::get<dcp::WriteBytes>(contents[i].contents);
      const auto counted = [&](const auto& sink) {
        visit([&](std::span<const std::byte> part) {
          sink(part);
          done += part.size();
          if (done - reported >= kProgress) report();
        });
      };
      item = dcp::write_tensor_item(file, name, plan.entries[write.entry].dtype, write.box.shape(),
                                    counted);
      report();
    }
    items.push_back({write.entry, write.box.begin, write.box.end, item.offset, item.length});
  }
  const uint64_t size = file.position();
  file.close({.sync = true});
  const Json json = {{"file", name},
                     {"size", size},
                     {"crc32", dcp::sums_text(sums.values())},
                     {"items", std::move(items)}};
  return json.dump();
}

void write_description(const StatePlan& plan, const std::vector<std::string>& reports,
                       const std::map<std::string, dcp::Path>& paths, const fs::path& directory) {
  dcp::Metadata metadata;
  metadata.paths = paths;
  std::vector<dcp::Entry*> entries;
  for (const auto& entry : plan.entries) {
    dcp::Entry& added = metadata.entries[entry.name];
    if (entry.is_tensor) {
      added = dcp::TensorEntry{entry.dtype, entry.shape, {}};
    } else {
      added = dcp::ValueEntry{};
    }
    entries.push_back(&added);
  }
  dcp::Checksums checksums;
  for (const auto& report : reports) {
    const Json json = Json::parse(report);
    const auto file = json.at("file").get<std::string>();
    checksums[file] = {json.at("size").get<uint64_t>(),
                       *dcp::parse_sums(json.at("crc32").get<std::string>())};
    for (const auto& item : json.at("items")) {
      const dcp::StoredItem stored{file, item.at(3).get<uint64_t>(), item.at(4).get<uint64_t>()};
      dcp::Entry& entry = *entries.at(item.at(0).get<size_t>());
      if (auto* tensor = std::get_if<dcp::TensorEntry>(&entry)) {
        tensor->chunks.push_back(
            {{item.at(1).get<std::vector<int64_t>>(), item.at(2).get<std::vector<int64_t>>()},
             stored});
      } else {
        std::get<dcp::ValueEntry>(entry).item = stored;
      }
    }
  }
  checksums[std::string(dcp::kMetadataFile)] =
      write_small_file(directory / dcp::kMetadataFile, dcp::write_metadata(metadata));
  write_small_file(directory / dcp::kChecksumFile, dcp::checksums_text(checksums));
}

}  // namespace tessera::checkpoint
