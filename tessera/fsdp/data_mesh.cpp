#include "tessera/fsdp/data_mesh.h"

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tessera/cost/machine.h"
#include "tessera/fsdp/flat_layout.h"

namespace tessera::fsdp {
namespace {

std::shared_ptr<const comm::Group> group_on(const DeviceMesh& mesh, int axis) {
  if (axis < 0 || mesh.size(axis) == 1) return nullptr;
  return comm::group_of(mesh, mesh.axis_name(axis));
}

}  // namespace

DataMesh::DataMesh(const DeviceMesh& mesh, int replicate_axis, int shard_axis)
    : mesh_(mesh), replicate_axis_(replicate_axis), shard_axis_(shard_axis) {
  require(mesh.contains_me(), "fully_shard on mesh ", mesh,
          ", of which this rank is no part; call it on the mesh's ranks alone");
  shard_group_ = group_on(mesh, shard_axis);
  replicate_group_ = group_on(mesh, replicate_axis);
}

DataMesh DataMesh::shard(const DeviceMesh& mesh) { return {mesh, -1, 0}; }
DataMesh DataMesh::replicate(const DeviceMesh& mesh) { return {mesh, 0, -1}; }
DataMesh DataMesh::both(const DeviceMesh& mesh) { return {mesh, 0, 1}; }

int64_t DataMesh::latency_bytes() const {
  constexpr double kCarryPerStart = 4;
  constexpr int64_t kMany = 1 << 30;
  const int axis = shard_group_ != nullptr ? shard_axis_ : replicate_axis_;
  if (axis < 0 || mesh_.size(axis) == 1) return 0;
  const auto links = cost::links_of(mesh_, cost::default_machine(mesh_.device()));
  const cost::Link& link = links[static_cast<size_t>(axis)];
  const double start = cost::all_gather_seconds(link, mesh_.size(axis), 0);
  const double many = cost::all_gather_seconds(link, mesh_.size(axis), kMany) - start;
  return static_cast<int64_t>(kCarryPerStart * start / many * static_cast<double>(kMany));
}

std::shared_ptr<const comm::Group> DataMesh::smaller_group(int ranks) const {
  const std::string inner = shard_name() + "_near";
  const DeviceMesh split = mesh_.unflatten(
      shard_name(), {{shard_name() + "_far", shard_size() / ranks}, {inner, ranks}});
  return comm::group_of(split, inner);
}

DataMesh::Kind DataMesh::kind() const {
  if (shard_axis_ < 0) return Kind::replicate;
  return replicate_axis_ < 0 ? Kind::shard : Kind::both;
}

std::string DataMesh::to_text() const {
  const auto over = [this](const char* what, int axis) {
    return join_text(what, " over ", mesh_.axis_name(axis), "=", mesh_.size(axis));
  };
  switch (kind()) {
    case Kind::replicate:
      return over("replicate", replicate_axis_);
    case Kind::shard:
      return over("shard", shard_axis_);
    case Kind::both:
      break;
  }
  return over("replicate", replicate_axis_) + ", " + over("shard", shard_axis_);
}

std::vector<Interval> DataMesh::chunks(int64_t size) const {
  std::vector<Interval> out;
  for (int rank = 0; rank < shard_size(); ++rank) out.push_back(chunk(size, shard_size(), rank));
  return out;
}

int64_t DataMesh::padded_size(int64_t size) const {
  return chunk(size, shard_size(), 0).size() * shard_size();
}

std::vector<Placement> DataMesh::placements(int dim) const {
  std::vector<Placement> out(static_cast<size_t>(mesh_.ndim()));
  if (shard_axis_ >= 0 && dim != kWhole) out[static_cast<size_t>(shard_axis_)] = Shard(dim);
  return out;
}

}  // namespace tessera::fsdp
