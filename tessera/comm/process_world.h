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

/// The world of a process (processes.h): its connections to the store, its groups, its end.
namespace tessera::comm {

/// After a timeout, for what is still to be said over the store.
inline constexpr auto kLastWords = std::chrono::seconds(3);

class ProcessWorld final : public RankWorld {
 public:
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  using BoundedPtr = c10::intrusive_ptr<BoundedStore>;

  /// `prefix` is that of this world's keys in the store.
  ProcessWorld(const ProcessWorldOptions& options, const BoundedPtr& store,
               const std::string& prefix);
  ~ProcessWorld() override { end(); }

  /// Waits for all ranks of the world and learns whether they share a machine.
  void start(const ProcessWorldOptions& options);

  /// What the destructor does, for a process that ends while others still hold the world.
  void end();

 protected:
  Backends make_backends(std::span<const int> ranks, int index,
                         const std::string& group_name) override;

 private:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using WeakBackend = c10::weak_intrusive_ptr<c10d::Backend>;

  bool attend(std::string meeting, std::string purpose, std::span<const int> ranks, int index,
              const std::string& word);
  BackendPtr connect_gloo(StorePtr store, std::span<const int> ranks, int index,
                          const std::string& group_name);
  void require_descriptors_for(int group_size, const std::string& group_name);
  void look_for_failure(const std::string& group_name);
  void keep_track(c10::DeviceType device, const BackendPtr& backend);
  std::vector<std::pair<c10::DeviceType, WeakBackend>> made();
  void end_sending() noexcept;
  void shut_down_groups(WorldShutdown::BarrierResult result) noexcept;

  const pid_t owner_;  // a process that this one forks is not a rank
  BoundedPtr connection_;
  std::string prefix_;
  StorePtr store_;  // this world's keys, over the connection
  StorePtr board_;  // the noticeboard, over the same
  bool hosts_store_;
  int local_rank_;
  std::vector<c10::DeviceType> devices_;
  std::string secret_;
  std::string address_;
  std::unique_ptr<LivenessProbe> life_sign_;
  bool ended_ = false;
  /// Behind the groups that this world made, not those that it adopted. By device: CPU is Gloo.
  std::vector<std::pair<c10::DeviceType, WeakBackend>> made_;
  std::mutex made_mutex_;
};

/// The store, for messages: "node0:29500".
std::string place_of(const ProcessWorldOptions& options);

/// The keys of `store` that begin with `prefix`.
c10::intrusive_ptr<c10d::Store> prefixed(const std::string& prefix,
                                         c10::intrusive_ptr<c10d::Store> store);

}  // namespace tessera::comm
