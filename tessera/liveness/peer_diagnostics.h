#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "tessera/collective/call_info.h"
#include "tessera/liveness/liveness_probe.h"

/// Out-of-band diagnostics for failed collectives, exchanged over the store instead of the group's
/// connections: which rank failed and why, which are still alive, which wait in which call.
///
/// Best effort by contract: nothing here throws, and nothing takes longer than a few seconds (a
/// dozen with dead or very busy ranks), even if the store is gone. Nothing is written in normal
/// operation.
namespace tessera::comm {

class PeerDiagnostics {
 public:
  static constexpr const char* kPrefix = "board";  ///< of its keys in a world's store

  /// `store` must be a separate connection, because others may block on theirs. It is opened in
  /// advance, because the name look-up of a connect may take seconds. `store_host` is the host of
  /// rank 0's store, for errors after the store is gone; "": unknown.
  PeerDiagnostics(c10::intrusive_ptr<c10d::Store> store, int rank, std::string store_host = "");

  struct Failure {
    int rank = 0;
    std::string text;
  };

  /// Reports that this rank failed. Only the first failure of the world is kept.
  void post_failure(std::string_view text) noexcept;
  std::optional<Failure> first_failure() noexcept;
  /// The same over a connection of the caller, which may block; posting does not throw.
  static std::optional<Failure> first_failure(c10d::Store& store);
  static void post_failure(c10d::Store& store, int rank, std::string_view text) noexcept;

  /// Reports that this rank waits in this call of `channel`. Returns it with the calls that other
  /// ranks of the group (in a large one, some of them) have reported, by index; these may be
  /// outdated.
  std::vector<RankCall> exchange_calls(const GroupInfo& group, const std::string& channel,
                                       const RankCall& mine) noexcept;

  /// Reports that this rank ended this call of `channel` with an error, so that peers stop waiting
  /// for its part. Only the first report per call is kept.
  void give_up(const std::string& channel, uint64_t sequence, std::string_view why) noexcept;
  /// The report of a rank that gave up on this call, if any.
  std::optional<Failure> abandoned_by(const std::string& channel, uint64_t sequence) noexcept;

  /// Reports the host of this rank, for error messages of others.
  void post_host(std::string_view host) noexcept;
  /// "rank 2", "ranks 2,3"; with hosts if they were posted and the store responds: "ranks 2
  /// (node7), 3 (node7)".
  std::string ranks_with_hosts(std::span<const int> ranks) noexcept;
  /// The rank that hosts the store: "rank 0", "rank 0 (10.0.0.1)".
  std::string store_host_text() const;

  /// Reports that this rank makes no more calls: its world ends.
  void post_end() noexcept;
  /// Which of the ranks, other than this one, have reported that.
  std::vector<int> who_ended(std::span<const int> ranks) noexcept;

  /// Reports that this process exits and no longer reads the store. If it hosts the store, first
  /// waits until the `others` have reported the same, so that they can read the reason; at most a
  /// few seconds.
  void post_exit(int others, bool hosts_store) noexcept;

  /// Probes the ranks other than this one; nullopt if the store does not respond.
  std::optional<LivenessProbe::ProbeResult> probe(std::span<const int> ranks) noexcept;
  /// The ranks that did not answer the last probe.
  std::vector<int> silent();

 private:
  struct Connection;  // outlives this object if a call never returns

  std::shared_ptr<Connection> connection_;
  int rank_;
  std::string store_host_;
};

}  // namespace tessera::comm
