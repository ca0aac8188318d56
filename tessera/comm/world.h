#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/mesh/device_mesh.h"

/// The ranks of a program, seen from one of them. Three kinds:
///
///   processes   process_world()        c10d over Gloo or NCCL, rendezvous from the environment
///   threads     run_ranks(n, fn)       n ranks of this process, real data, deterministic
///   fake        fake_world(rank, n)    one rank of a world of any size: shapes, no data
///
/// A mesh carries its world, so everything made from a mesh finds its groups without asking which
/// rank "the current thread" is. Only init_device_mesh, called without a world, looks at the
/// calling thread: inside run_ranks it takes that rank's world, elsewhere the process's.
namespace tessera::comm {

class Observers;  // recorder.h: who listens to this rank's collectives

class RankWorld : public World, public std::enable_shared_from_this<RankWorld> {
 public:
  enum class Kind { processes, threads, fake, external };

  ~RankWorld() override;

  int rank() const final { return rank_; }
  int size() const final { return size_; }
  Kind kind() const { return kind_; }
  /// Names this world in group names and messages.
  const std::string& name() const { return name_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// The group of these world ranks, made at the first call and kept. The calling rank must be in
  /// it, and every other member must make it too (for processes this call meets them).
  std::shared_ptr<const Group> group(std::span<const int> ranks);

  /// Takes an existing process group as the group of `ranks`, in place of making one: the group's
  /// calls go through its backends. Every rank of it adopts it before one asks for that group.
  void adopt(std::span<const int> ranks, const c10::intrusive_ptr<c10d::ProcessGroup>& existing);

  Observers& observers() const { return *observers_; }
  /// So that `Recorder recorder(*world)` and `set_checked(*world, true)` take a world.
  operator Observers&() const { return *observers_; }

 protected:
  RankWorld(Kind kind, int rank, int size, std::string name, std::chrono::milliseconds timeout);

  /// A backend for each device type that this world serves; called for groups of two or more.
  /// `group_name` is name() + ".g[ranks]".
  virtual Backends make_backends(std::span<const int> ranks, int index,
                                 const std::string& group_name) = 0;

 private:
  std::vector<int> checked_ranks(std::span<const int> ranks) const;
  std::shared_ptr<const Group> make_group(std::vector<int> ranks, Backends backends);
  std::string group_name(std::span<const int> ranks) const;

  Kind kind_;
  int rank_;
  int size_;
  std::string name_;
  std::chrono::milliseconds timeout_;
  std::unique_ptr<Observers> observers_;
  std::mutex mutex_;
  std::map<std::vector<int>, std::shared_ptr<const Group>> groups_;
};

/// The world of the calling thread: its rank's inside run_ranks, else the process's (made from the
/// environment at the first call; one rank if the environment names none).
std::shared_ptr<RankWorld> current_world();

/// The world of the WorldGuard that is open on the calling thread; nullptr if none is.
std::shared_ptr<RankWorld> entered_world();

/// While it lives, current_world() on the calling thread is `world`: run_ranks does this for its
/// threads; with fake_world it lets code plan as if it ran on that rank. Ends on the same thread.
class WorldGuard {
 public:
  explicit WorldGuard(std::shared_ptr<RankWorld> world);
  ~WorldGuard();
  WorldGuard(const WorldGuard&) = delete;
  WorldGuard& operator=(const WorldGuard&) = delete;

 private:
  std::shared_ptr<RankWorld> previous_;
};

/// The world behind a mesh; an error if the mesh is on paper.
RankWorld& world_of(const DeviceMesh& mesh);

/// My group along the given axes of a mesh, in the order given.
std::shared_ptr<const Group> group_of(const DeviceMesh& mesh, std::span<const int> axes);
std::shared_ptr<const Group> group_of(const DeviceMesh& mesh, std::string_view axis);

/// A mesh over ranks 0..n-1 of a world (default: current_world()), with the groups of its axes
/// made. Every rank of the world calls it, also those that the mesh leaves out. Names default to
/// "axis0"...
DeviceMesh init_device_mesh(const std::string& device, std::span<const int> sizes,
                            std::span<const std::string> names = {},
                            std::shared_ptr<RankWorld> world = nullptr);

/// "dp=2,tp=4", "cuda:dp=8": the same from text; may list ranks ("tp=2@2,3").
DeviceMesh init_device_mesh(std::string_view text, std::shared_ptr<RankWorld> world = nullptr);

/// A mesh over process groups that exist already, one an axis (PyTorch's DeviceMesh.from_group), in
/// a world of its own that has just these groups. `mesh` names all ranks; groups[i] must hold my
/// ranks along axis i in mesh order: its size and my rank in it are checked.
DeviceMesh mesh_from_groups(const DeviceMesh& mesh, int my_rank, int world_size,
                            std::span<const c10::intrusive_ptr<c10d::ProcessGroup>> groups);

}  // namespace tessera::comm
