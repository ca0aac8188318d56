#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/comm/group.h"
#include "tessera/mesh/device_mesh.h"

/// The ranks of a program, from the point of view of one of them. Three kinds:
///
///   processes   process_world()        c10d over Gloo or NCCL, rendezvous from the environment
///   threads     run_ranks(n, fn)       n ranks of this process, real data, deterministic
///   fake        fake_world(rank, n)    one rank of a world of any size: shapes, no data
///
/// A mesh carries its world, so everything created from a mesh finds its groups without knowing the
/// rank of the current thread. Only init_device_mesh without a world depends on the calling thread:
/// inside run_ranks it uses that rank's world, elsewhere the process's.
namespace tessera::comm {

class Observers;  // observe/recorder.h: observers of this rank's collectives

class TESSERA_API RankWorld : public World, public std::enable_shared_from_this<RankWorld> {
 public:
  enum class Kind { processes, threads, fake, external };

  ~RankWorld() override;

  int rank() const final { return rank_; }
  int size() const final { return size_; }
  Kind kind() const { return kind_; }
  /// Identifies this world in group names and messages.
  const std::string& name() const { return name_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// The group of these world ranks, created at the first call and cached. The calling rank must be
  /// in it, and every other member must call it too (for processes this is a rendezvous).
  std::shared_ptr<const Group> group(std::span<const int> ranks);

  /// Adopts an existing process group as the group of `ranks` instead of creating one: the group's
  /// calls use its backends. Every member must adopt it before any of them requests that group.
  void adopt(std::span<const int> ranks, const c10::intrusive_ptr<c10d::ProcessGroup>& existing);

  Observers& observers() const { return *observers_; }
  /// Allows `Recorder recorder(*world)` and `set_checked(*world, true)`.
  operator Observers&() const { return *observers_; }

 protected:
  RankWorld(Kind kind, int rank, int size, std::string name, std::chrono::milliseconds timeout);

  /// One backend per device type that this world serves; called for groups of two or more.
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

/// The world of the calling thread: its rank's inside run_ranks, else the process's (created from
/// the environment at the first call; one rank if the environment names none).
TESSERA_API std::shared_ptr<RankWorld> current_world();

/// The world of the innermost WorldGuard on the calling thread; nullptr if there is none.
TESSERA_API std::shared_ptr<RankWorld> entered_world();

/// While it is alive, current_world() on the calling thread is `world`. run_ranks uses it for its
/// threads; with fake_world, code can plan as if it ran on that rank. Must end on the same thread.
class TESSERA_API WorldGuard {
 public:
  explicit WorldGuard(std::shared_ptr<RankWorld> world);
  ~WorldGuard();
  WorldGuard(const WorldGuard&) = delete;
  WorldGuard& operator=(const WorldGuard&) = delete;

 private:
  std::shared_ptr<RankWorld> previous_;
};

/// The world of a mesh; throws if the mesh has none.
TESSERA_API RankWorld& world_of(const DeviceMesh& mesh);

/// My group along the given axes of a mesh, in the order given.
TESSERA_API std::shared_ptr<const Group> group_of(const DeviceMesh& mesh,
                                                  std::span<const int> axes);
TESSERA_API std::shared_ptr<const Group> group_of(const DeviceMesh& mesh, std::string_view axis);
/// The group of all ranks of a mesh, in mesh order.
TESSERA_API std::shared_ptr<const Group> group_of(const DeviceMesh& mesh);

/// A mesh over ranks 0..n-1 of a world (default: current_world()); creates the groups of its axes.
/// Must be called on every rank of the world, including those outside of the mesh. Names default to
/// "axis0"...
TESSERA_API DeviceMesh init_device_mesh(const std::string& device, std::span<const int> sizes,
                                        std::span<const std::string> names = {},
                                        std::shared_ptr<RankWorld> world = nullptr);

/// The same from text: "dp=2,tp=4", "cuda:dp=8"; may list ranks ("tp=2@2,3").
TESSERA_API DeviceMesh init_device_mesh(std::string_view text,
                                        std::shared_ptr<RankWorld> world = nullptr);

/// A mesh over existing process groups, one per axis (PyTorch's DeviceMesh.from_group), in a new
/// world that has only these groups. `mesh` names all ranks; groups[i] must hold my ranks along
/// axis i in mesh order: its size and my rank in it are checked.
TESSERA_API DeviceMesh
mesh_from_groups(const DeviceMesh& mesh, int my_rank, int world_size,
                 std::span<const c10::intrusive_ptr<c10d::ProcessGroup>> groups);

}  // namespace tessera::comm
