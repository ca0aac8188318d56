#include "tessera/partition/manifest/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/errors.h"
#include "tessera/files/json_cursor.h"
#include "tessera/files/mapped_file.h"
#include "tessera/program/archive.h"

namespace tessera::partition {
namespace {

using files::JsonCursor;
using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "tessera.sharded_program";
constexpr int64_t kVersion = 1;

/// A name that is one component of a path: a manifest from elsewhere must not reach other files.
bool is_plain_name(std::string_view name) {
  if (name.empty() || name == "." || name == "..") return false;
  return std::ranges::none_of(
      name, [](unsigned char c) { return c == '/' || c == '\\' || c < 0x20 || c == 0x7f; });
}

std::string plain_name(const JsonCursor& json) {
  std::string name = json.text();
  if (!is_plain_name(name)) json.fail("is not a plain file name: it may not lead elsewhere");
  return name;
}

int rank_in(const JsonCursor& json, const DeviceMesh& mesh) {
  const int64_t rank = json.integer();
  if (std::ranges::find(mesh.ranks(), rank) == mesh.ranks().end()) {
    json.fail(join_text("is ", rank, ", which is not a rank of ", mesh));
  }
  return static_cast<int>(rank);
}

std::vector<RankProgram> read_ranks(const JsonCursor& json, const DeviceMesh& mesh) {
  if (json.size() != static_cast<size_t>(mesh.size())) {
    json.fail(
        join_text("lists ", json.size(), " programs for the ", mesh.size(), " ranks of ", mesh));
  }
  std::vector<RankProgram> out;
  for (const JsonCursor one : json) {
    RankProgram program{rank_in(one.at("rank"), mesh), "", "model"};
    if (const auto file = one.find("file")) program.file = plain_name(*file);
    if (const auto model = one.find("model")) program.model = plain_name(*model);
    if (program.rank != mesh.ranks()[out.size()]) {
      one.fail(join_text("is of rank ", program.rank, " where that of rank ",
                         mesh.ranks()[out.size()], " is expected"));
    }
    out.push_back(std::move(program));
  }
  return out;
}

std::vector<ManifestGroup> read_groups(const JsonCursor& json, const DeviceMesh& mesh) {
  std::vector<ManifestGroup> out;
  std::set<std::string> names;
  for (const JsonCursor one : json) {
    ManifestGroup group{one.text("name"), {}};
    if (!names.insert(group.name).second) one.fail("has the name of an earlier group");
    std::set<int> members;
    for (const JsonCursor rank : one.at("ranks")) {
      group.ranks.push_back(rank_in(rank, mesh));
      if (!members.insert(group.ranks.back()).second) rank.fail("occurs twice in the group");
    }
    if (group.ranks.empty()) one.fail("has no ranks");
    out.push_back(std::move(group));
  }
  return out;
}

ManifestTensor read_tensor(const JsonCursor& json, const DeviceMesh& mesh) {
  ManifestTensor out;
  out.name = json.text("name");
  const auto dtype = dtype_from_name(json.text("dtype"));
  if (!dtype) json.at("dtype").fail("is not an element type");
  out.dtype = *dtype;
  for (const JsonCursor size : json.at("shape")) {
    out.shape.push_back(size.integer());
    if (out.shape.back() < -1) size.fail("is not a size");
  }
  const JsonCursor placements = json.at("placements");
  try {
    out.placements = parse_placements(placements.text());
  } catch (const InvalidArgument& error) {
    placements.fail(join_text("cannot be read: ", error.what()));
  }
  if (out.placements.size() != static_cast<size_t>(mesh.ndim())) {
    placements.fail(join_text("does not have one placement for each axis of ", mesh));
  }
  for (const Placement& p : out.placements) {
    if (p.is_partial()) placements.fail("is partial: sums cannot be passed or returned");
    if (p.is_sharded() && (p.dim() < 0 || p.dim() >= std::ssize(out.shape))) {
      placements.fail("shards a dim that the tensor does not have");
    }
  }
  if (const auto below = json.find("indexes_below")) out.indexes_below = below->integer();
  return out;
}

Json tensor_json(const ManifestTensor& tensor) {
  Json out = {{"name", tensor.name},
              {"dtype", dtype_name(tensor.dtype)},
              {"shape", tensor.shape},
              {"placements", placements_text(tensor.placements)}};
  if (tensor.indexes_below) out["indexes_below"] = *tensor.indexes_below;
  return out;
}

}  // namespace

Sharding ManifestTensor::sharding(const DeviceMesh& mesh, std::vector<int64_t> global_shape) const {
  bool fits = global_shape.size() == shape.size();
  for (size_t d = 0; fits && d < shape.size(); ++d) {
    fits = shape[d] == -1 || shape[d] == global_shape[d];
  }
  require(
      fits, name, " is ", [&] { return shape_text(global_shape); }, ", the program's is ",
      [&] { return shape_text(shape); }, " (-1: any size)");
  return Sharding(mesh, placements, std::move(global_shape), {.dtype = dtype});
}

const RankProgram& Manifest::program_of(int rank) const {
  const auto found = std::ranges::find(ranks, rank, &RankProgram::rank);
  require(found != ranks.end(), "rank ", rank, " has no program: it is sharded for ", mesh);
  return *found;
}

std::string Manifest::to_json() const {
  Json programs = Json::array();
  for (const auto& one : ranks) {
    Json program = {{"rank", one.rank}};
    if (!one.file.empty()) program["file"] = one.file;
    program["model"] = one.model;
    programs.push_back(std::move(program));
  }
  Json all_groups = Json::array();
  for (const auto& group : groups) {
    all_groups.push_back({{"name", group.name}, {"ranks", group.ranks}});
  }
  Json passed = Json::array();
  for (const auto& tensor : inputs) passed.push_back(tensor_json(tensor));
  Json results = Json::array();
  for (const auto& tensor : outputs) results.push_back(tensor_json(tensor));
  const Json json = {{"format", kFormat},      {"version", kVersion}, {"source", source},
                     {"mesh", mesh.to_text()}, {"ranks", programs},   {"groups", all_groups},
                     {"inputs", passed},       {"outputs", results}};
  return json.dump(1) + "\n";
}

Manifest Manifest::parse(std::string_view text, std::string_view document) {
  const Json json = files::parse_json(text, document);
  const JsonCursor root(json, document);
  if (root.text("format") != kFormat) root.at("format").fail("is not that of a sharded program");
  if (root.integer("version") != kVersion) {
    root.at("version").fail(
        join_text("is ", root.integer("version"), "; this library reads ", kVersion));
  }
  Manifest out;
  out.source = root.text("source");
  try {
    out.mesh = DeviceMesh::parse(root.text("mesh"));
  } catch (const InvalidArgument& error) {
    root.at("mesh").fail(join_text("cannot be read: ", error.what()));
  }
  out.ranks = read_ranks(root.at("ranks"), out.mesh);
  out.groups = read_groups(root.at("groups"), out.mesh);
  for (const JsonCursor one : root.at("inputs")) out.inputs.push_back(read_tensor(one, out.mesh));
  for (const JsonCursor one : root.at("outputs")) out.outputs.push_back(read_tensor(one, out.mesh));
  return out;
}

Manifest Manifest::read(const std::filesystem::path& path) {
  const bool single = std::filesystem::is_regular_file(path);
  Manifest out;
  if (single) {
    const auto archive = program::Archive::open(path);
    const auto* record = archive->record(kManifestRecord);
    require(record != nullptr, path.string(), " is not a sharded program: it has no record ",
            kManifestRecord);
    out = parse(archive->zip().text(*record), join_text(path.string(), ": ", kManifestRecord));
  } else {
    const auto file = files::MappedFile::open(path / kManifestName);
    const auto bytes = file->bytes();
    out = parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file->path());
  }
  for (const auto& one : out.ranks) {
    require(one.file.empty() == single, path.string(), ": the program of rank ", one.rank,
            single ? " is in another file" : " has no file");
  }
  return out;
}

bool is_sharded_program(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path / kManifestName, ignored)) return true;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  try {
    return program::Archive::open(path)->record(kManifestRecord) != nullptr;
  } catch (const Error&) {
    return false;  // opening it as a program says what is wrong
  }
}

}  // namespace tessera::partition
