#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/sharding/placement.h"
#include "tessera/sharding/sharding.h"

/// What a sharded program consists of: DIR/manifest.json, beside one `.pt2` for each rank; or, in
/// one `.pt2` that holds the programs of all ranks, the record extra/manifest.json.
///
///   {"format": "tessera.sharded_program", "version": 1, "source": "mlp.pt2", "mesh": "tp=2",
///    "ranks":   [{"rank": 0, "file": "rank_0.pt2", "model": "model"}, ...],
///    "groups":  [{"name": "0", "ranks": [0, 1]}],
///    "inputs":  [{"name": "x", "dtype": "f32", "shape": [8, -1], "placements": "R"}],
///    "outputs": [{"name": "output", "dtype": "f32", "shape": [8, -1], "placements": "R"}]}
///
/// In a single file the ranks have no "file" and a "model" of their own: "rank_0", "rank_1", ...
///
/// To run it, start a process for each rank, register a process group under the name of each group
/// that the rank is in, give every rank its part of each input, and run its file. Ranks call the
/// collectives of their programs in the same order.
///
/// A manifest that was read is sound: file names stay inside the directory, ranks are those of the
/// mesh, each once, and placements fit the mesh.
namespace tessera::partition {

inline constexpr std::string_view kManifestName = "manifest.json";
/// The name in a file of all ranks.
inline constexpr std::string_view kManifestRecord = "extra/manifest.json";

/// Where the program of one rank is.
struct TESSERA_API RankProgram {
  int rank = 0;
  std::string file;  ///< a plain file name in the directory: "rank_0.pt2"; "" in a single file
  std::string model = "model";  ///< which program of the file: the record models/<model>.json

  /// The file of this program, of a sharded program in `path`.
  std::filesystem::path file_in(const std::filesystem::path& path) const {
    return file.empty() ? path : path / file;
  }
};

/// The ranks behind a group name of `_c10d_functional` ops. "0" is Python's name for the group of
/// all ranks, which init_process_group makes; the others are "1", "2", ... in this order, which are
/// the names that Python gives if all ranks call new_group(ranks) for one after the other.
struct TESSERA_API ManifestGroup {
  std::string name;
  std::vector<int> ranks;
};

/// A tensor that the caller passes or gets.
struct TESSERA_API ManifestTensor {
  std::string name;  ///< as program::input_names and output_names give it
  DType dtype = DType::f32;
  std::vector<int64_t> shape;         ///< global; -1 for a size that is known only when it runs
  std::vector<Placement> placements;  ///< one for each axis of the mesh
  /// Of an input that is an index into an embedding: how many rows that has in the whole program.
  std::optional<int64_t> indexes_below{};

  /// How a tensor of this global shape is sharded. InvalidArgument, with the name, if the shape is
  /// not one of this tensor.
  Sharding sharding(const DeviceMesh& mesh, std::vector<int64_t> global_shape) const;
};

struct TESSERA_API Manifest {
  std::string source;  ///< name of the file that was sharded
  DeviceMesh mesh;
  std::vector<RankProgram> ranks;  ///< in the order of mesh.ranks()
  std::vector<ManifestGroup> groups;
  std::vector<ManifestTensor> inputs;   ///< tensors among the user's inputs, in order
  std::vector<ManifestTensor> outputs;  ///< tensors among the results, in order

  const RankProgram& program_of(int rank) const;  ///< InvalidArgument for a rank outside the mesh

  std::string to_json() const;
  /// `document` is for messages. InvalidArgument names the place and what is wrong with it.
  static Manifest parse(std::string_view text, std::string_view document);
  /// Reads DIR/manifest.json, or the manifest in a file of all ranks.
  static Manifest read(const std::filesystem::path& path);
};

/// True for a directory or a `.pt2` that has a manifest.
TESSERA_API bool is_sharded_program(const std::filesystem::path& path);

}  // namespace tessera::partition
