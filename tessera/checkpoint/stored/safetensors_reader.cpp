#include "tessera/checkpoint/stored/safetensors_reader.h"

#include <set>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/dcp/check.h"
#include "tessera/files/description_file.h"
#include "tessera/files/json_cursor.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kEnding = ".safetensors";

std::set<std::string> tensor_files(const fs::path& directory) {
  std::set<std::string> out;
  for (const auto& item : fs::directory_iterator(directory)) {
    if (item.path().extension() == kEnding) out.insert(item.path().filename().string());
  }
  return out;
}

nlohmann::ordered_json read_index(const fs::path& index) {
  const auto bytes =
      files::read_whole(*files::InputFile::open(index), files::most_description_bytes(index));
  return files::parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                           index.string());
}

}  // namespace

bool is_safetensors(const fs::path& path) {
  if (!fs::is_directory(path)) return path.extension() == kEnding;
  return fs::exists(path / kIndex) || !tensor_files(path).empty();
}

SafetensorsReader::SafetensorsReader(const fs::path& path) : path_(path) {
  if (!fs::is_directory(path)) {
    add_file(path.parent_path(), path.filename().string());
  } else if (fs::exists(path / kIndex)) {
    check_index(path / kIndex);
  } else {
    for (const auto& name : tensor_files(path)) add_file(path, name);
  }
}

void SafetensorsReader::check_index(const fs::path& index) {
  const auto json = read_index(index);
  const std::string document = index.string();
  std::map<std::string, std::string> named;
  files::JsonCursor(json, document)
      .at("weight_map")
      .each_member([&](std::string_view name, const files::JsonCursor& file) {
        named.emplace(std::string(name), file.text());
      });
  std::set<std::string> files;
  for (const auto& [name, file] : named) files.insert(file);
  for (const auto& file : files) add_file(path_, file);
  for (const auto& [name, file] : named) {
    const auto found = metadata_.entries.find(name);
    require(found != metadata_.entries.end() &&
                std::get<dcp::TensorEntry>(found->second).chunks.at(0).item.file == file,
            document, ": it says that ", name, " is in ", file, ", which it is not");
  }
  for (const auto& [name, entry] : metadata_.entries) {
    require(named.contains(name), document, ": it does not name ", name, ", which is in ",
            std::get<dcp::TensorEntry>(entry).chunks.at(0).item.file);
  }
}

void SafetensorsReader::add_file(const fs::path& directory, const std::string& name) {
  const fs::path inside = directory.empty() ? fs::path(".") : directory;
  const auto& file = files_.try_emplace(name, dcp::file_inside(inside, name)).first->second;
  for (const auto& entry : file.entries()) {
    const Box whole{std::vector<int64_t>(entry.shape.size(), 0), entry.shape};
    dcp::TensorEntry tensor{entry.dtype, entry.shape, {{whole, {name, entry.offset, entry.size}}}};
    require(metadata_.entries.emplace(entry.name, std::move(tensor)).second, path_.string(), ": ",
            entry.name, " is in two files");
  }
}

StoredElements SafetensorsReader::find(const std::string& name, const dcp::Chunk& chunk,
                                       const Box& part) {
  const files::SafetensorsFile& file = files_.at(chunk.item.file);
  const files::SafetensorsEntry* entry = file.find(name);
  ensure(entry != nullptr, "a tensor that its own file does not have");
  std::vector<int64_t> strides = contiguous_stride(entry->shape);
  int64_t first = 0;
  for (size_t d = 0; d < part.begin.size(); ++d) first += part.begin[d] * strides[d];
  return {file.file(), entry->dtype,
          entry->offset + static_cast<uint64_t>(first * dtype_bytes(entry->dtype)), part.shape(),
          std::move(strides)};
}

files::PlainValue SafetensorsReader::read_value(const std::string& name, const dcp::ValueEntry&) {
  throw InternalError(join_text(name, " is a value, which safetensors does not have"));
}

}  // namespace tessera::checkpoint
