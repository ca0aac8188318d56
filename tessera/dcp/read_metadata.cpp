#include <unordered_map>

#include "tessera/base/errors.h"
#include "tessera/dcp/metadata.h"
#include "tessera/dcp/torch_dtypes.h"
#include "tessera/files/pickle/pickle_reader.h"

namespace tessera::dcp {
namespace {

using files::Pickle;
using files::PickleRef;

constexpr std::string_view kMetadata = "torch.distributed.checkpoint.metadata.Metadata";
constexpr std::string_view kTensor = "torch.distributed.checkpoint.metadata.TensorStorageMetadata";
constexpr std::string_view kBytes = "torch.distributed.checkpoint.metadata.BytesStorageMetadata";
constexpr std::string_view kIndex = "torch.distributed.checkpoint.metadata.MetadataIndex";
constexpr std::string_view kInfo = "torch.distributed.checkpoint.filesystem._StorageInfo";
constexpr std::string_view kProperties = "torch.distributed.checkpoint.metadata.TensorProperties";
constexpr std::string_view kChunk = "torch.distributed.checkpoint.metadata.ChunkStorageMetadata";

std::span<const std::string_view> allowed_globals() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> out = {
        kMetadata,
        kTensor,
        kBytes,
        kIndex,
        kInfo,
        kProperties,
        kChunk,
        "torch.distributed.checkpoint.metadata.StorageMeta",
        "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
        "torch.Size",
        "torch.serialization._get_layout",
        "pathlib.PosixPath",
        "pathlib.WindowsPath",
        "collections.OrderedDict"};
    const auto dtypes = dtype_globals();
    out.insert(out.end(), dtypes.begin(), dtypes.end());
    return out;
  }();
  return names;
}

/// Where things are stored: by name and the offset of the chunk; values have no offset.
using Places = std::unordered_map<std::string, StoredItem>;

std::string place_key(std::string_view name, const std::vector<int64_t>* offset) {
  const std::string place = offset == nullptr ? "value" : list_text(*offset);
  return join_text(place.size(), ":", place, name);
}

StoredItem read_item(PickleRef info) {
  if (!info.is_object(kInfo)) info.fail("its storage data is not of the file system's kind");
  StoredItem item{.file = std::string(info.field("relative_path", 0).text())};
  const int64_t offset = info.field("offset", 1).integer();
  const int64_t length = info.field("length", 2).integer();
  if (offset < 0 || length < 0) info.fail(join_text("a negative place in ", item.file));
  if (info.has_field("transform_descriptors", 3)) {
    throw NotSupported(join_text(item.file, " is compressed or encrypted by an extension of ",
                                 "PyTorch's; save it without extensions"));
  }
  item.offset = static_cast<uint64_t>(offset);
  item.length = static_cast<uint64_t>(length);
  return item;
}

Places read_places(PickleRef storage) {
  Places places;
  for (const auto& [index, info] : storage.members()) {
    if (!index.is_object(kIndex)) index.fail("a key of its storage data is not a MetadataIndex");
    const std::string_view name = index.field("fqn", 0).text();
    std::optional<std::vector<int64_t>> offset;
    if (index.has_field("offset", 1)) offset = index.field("offset", 1).integers();
    const auto key = place_key(name, offset ? &*offset : nullptr);
    if (!places.emplace(key, read_item(info)).second) {
      index.fail(join_text("it says twice where ", name,
                           offset ? join_text(" at ", list_text(*offset)) : "", " is stored"));
    }
  }
  return places;
}

std::optional<DType> read_dtype(PickleRef tensor) {
  if (!tensor.has_field("properties", 0)) return std::nullopt;
  const PickleRef properties = tensor.field("properties", 0);
  if (!properties.is_object(kProperties)) properties.fail("properties of another class");
  // The state is a tuple (dtype, layout, ...); constructed, they are arguments.
  const auto fields = properties.has_state() ? properties.state().items() : properties.arguments();
  if (fields.empty()) return std::nullopt;
  const auto dtype = dtype_from_torch_name(fields[0].global());
  if (!dtype) {
    throw NotSupported(join_text("a checkpoint with elements of type ", fields[0].global()));
  }
  return dtype;
}

TensorEntry read_tensor(const std::string& name, PickleRef tensor, const Places& places) {
  TensorEntry entry{.dtype = read_dtype(tensor), .shape = tensor.field("size", 1).integers()};
  for (const PickleRef chunk : tensor.field("chunks", 2).items()) {
    if (!chunk.is_object(kChunk)) chunk.fail(join_text("a chunk of ", name, " of another class"));
    Chunk out;
    out.box.begin = chunk.field("offsets", 0).integers();
    const auto sizes = chunk.field("sizes", 1).integers();
    if (out.box.begin.size() != entry.shape.size() || sizes.size() != entry.shape.size()) {
      chunk.fail(join_text("a chunk of ", name, " has another number of dims than the tensor"));
    }
    out.box.end.resize(sizes.size());
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (__builtin_add_overflow(out.box.begin[d], sizes[d], &out.box.end[d])) {
        chunk.fail(join_text("a chunk of ", name, " ends beyond 64 bits"));
      }
    }
    const auto place = places.find(place_key(name, &out.box.begin));
    if (place == places.end()) {
      chunk.fail(join_text("it does not say where the chunk of ", name, " at ",
                           list_text(out.box.begin), " is stored"));
    }
    out.item = place->second;
    entry.chunks.push_back(std::move(out));
  }
  return entry;
}

Path read_path(PickleRef parts) {
  Path path;
  for (const PickleRef part : parts.items()) {
    if (part.is(Pickle::Kind::integer)) {
      path.emplace_back(part.integer());
    } else {
      path.emplace_back(std::string(part.text()));
    }
  }
  return path;
}

}  // namespace

Metadata read_metadata(std::span<const std::byte> contents, const std::string& document) {
  const Pickle pickle =
      Pickle::parse(contents, {.document = document, .globals = allowed_globals()});
  const PickleRef root = pickle.root();
  if (!root.is_object(kMetadata)) root.fail("it is not a Metadata of a distributed checkpoint");
  const Places places = read_places(root.field("storage_data", 2));
  Metadata out;
  for (const auto& [key, value] : root.field("state_dict_metadata", 0).members()) {
    std::string name(key.text());
    Entry entry;
    if (value.is_object(kTensor)) {
      entry = read_tensor(name, value, places);
    } else if (value.is_object(kBytes)) {
      const auto place = places.find(place_key(name, nullptr));
      if (place == places.end())
        value.fail(join_text("it does not say where ", name, " is stored"));
      entry = ValueEntry{place->second};
    } else {
      value.fail(join_text(name, " is neither a tensor nor a value"));
    }
    if (!out.entries.emplace(name, std::move(entry)).second) {
      key.fail(join_text("it has the name ", name, " twice"));
    }
  }
  if (root.has_field("planner_data", 1)) {
    const PickleRef paths = root.field("planner_data", 1);
    if (paths.is(Pickle::Kind::dict)) {
      for (const auto& [key, path] : paths.members()) {
        out.paths.insert_or_assign(std::string(key.text()), read_path(path));
      }
    }
  }
  return out;
}

}  // namespace tessera::dcp
