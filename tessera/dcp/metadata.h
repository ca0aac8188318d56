#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/base/dtype.h"
#include "tessera/sharding/boxes.h"

/// The `.metadata` of PyTorch's distributed checkpoint (DCP): which tensors and values a directory
/// holds, into which boxes a tensor is split, and which bytes of which file hold each of them.
///
///   step_100/.metadata       a pickle of torch.distributed.checkpoint.metadata.Metadata
///   step_100/__0_0.distcp    items of rank 0, back to back, each what torch.save writes
///   step_100/__1_0.distcp
///
/// How tensors were sharded is not stored: only boxes. A reader takes from each item what overlaps
/// with the part that it needs.
namespace tessera::dcp {

inline constexpr std::string_view kMetadataFile = ".metadata";

/// Bytes of a file in the directory.
struct TESSERA_API StoredItem {
  std::string file{};
  uint64_t offset = 0;
  uint64_t length = 0;
  bool operator==(const StoredItem&) const = default;
};

/// A box of a tensor and where it is stored.
struct TESSERA_API Chunk {
  Box box;
  StoredItem item;
};

struct TESSERA_API TensorEntry {
  /// Absent where the writer left it out, which PyTorch allows; items have it.
  std::optional<DType> dtype;
  std::vector<int64_t> shape{};
  std::vector<Chunk> chunks{};  ///< empty boxes included
};

/// A pickled value that is not a tensor.
struct TESSERA_API ValueEntry {
  StoredItem item;
};

using Entry = std::variant<TensorEntry, ValueEntry>;

/// How a name came from a nested state: "optim.state.0" is {"optim", "state", 0}.
using PathPart = std::variant<std::string, int64_t>;
using Path = std::vector<PathPart>;

struct TESSERA_API Metadata {
  std::map<std::string, Entry> entries;
  std::map<std::string, Path> paths;  ///< absent names are their own path
};

/// Reads the file's contents and checks that it says where every chunk and value is. Throws
/// InvalidArgument that names `document`. Which bytes and boxes are plausible: check.h.
TESSERA_API Metadata read_metadata(std::span<const std::byte> contents,
                                   const std::string& document);

/// The file's contents. Every tensor needs a dtype.
TESSERA_API std::string write_metadata(const Metadata& metadata);

}  // namespace tessera::dcp
