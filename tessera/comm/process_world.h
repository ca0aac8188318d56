#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tessera/liveness/bounded_store.h"
#include "tessera/liveness/liveness_probe.h"
#include "tessera/liveness/world_shutdown.h"

/// The world of a process (processes.h): its store connections, its groups, its shutdown.
namespace tessera::comm {

/// Time for final messages over the store after a timeout.
inline constexpr auto kFinalMessages = std::chrono::seconds(3);

class ProcessWorld final : public RankWorld {
 public:
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  using BoundedPtr = c10::intrusive_ptr<BoundedStore>;

  /// `prefix` is that of this world's keys in the store.
  ProcessWorld(const ProcessWorldOptions& options, const BoundedPtr& store,
               const std::string& prefix);
  ~ProcessWorld() override { end(); }

  /// Waits for all ranks of the world and determines whether they share a machine.
  void start(const ProcessWorldOptions& options);

  /// What the destructor does, for a process that exits while others still reference the world.
  void end();

 protected:
  Backends make_backends(std::span<const int> ranks, int index,
                         const std::string& group_name) override;

 private:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using WeakBackend = c10::weak_intrusive_ptr<c10d::Backend>;

  bool wait_at_barrier(std::string barrier, std::string purpose, std::span<const int> ranks,
                       int index, const std::string& word);
  BackendPtr connect_gloo(StorePtr store, std::span<const int> ranks, int index,
                          const std::string& group_name);
  void require_descriptors_for(int group_size, const std::string& group_name);
  void look_for_failure(const std::string& group_name);
  std::string who_is_gone(std::span<const int> ranks);
  void keep_track(c10::DeviceType device, const BackendPtr& backend);
  std::vector<std::pair<c10::DeviceType, WeakBackend>> made();
  void shut_down();
  void end_sending() noexcept;
  void shut_down_groups(WorldShutdown::BarrierResult result) noexcept;

  const pid_t owner_;     // a forked child is not a rank
  StorePtr given_store_;  ///< by the program: it may be the server, which must live until the end
  BoundedPtr connection_;
  std::string prefix_;
  StorePtr store_;  // this world's keys, over the connection
  StorePtr board_;  // peer diagnostics, over the same connection
  bool hosts_store_;
  int local_rank_;
  std::vector<c10::DeviceType> devices_;
  std::string secret_;
  std::string address_;
  std::unique_ptr<LivenessProbe> probe_;
  bool ended_ = false;
  /// Backends that this world created, without adopted ones. By device: CPU is Gloo.
  std::vector<std::pair<c10::DeviceType, WeakBackend>> made_;
  std::mutex made_mutex_;
};

/// what(), for errors of libtorch without their backtrace.
std::string text_without_backtrace(const std::exception& e);

/// The store, for error messages: "node0:29500".
std::string place_of(const ProcessWorldOptions& options);

/// A view of `store` whose keys begin with `prefix`.
c10::intrusive_ptr<c10d::Store> prefixed(const std::string& prefix,
                                         c10::intrusive_ptr<c10d::Store> store);

}  // namespace tessera::comm
