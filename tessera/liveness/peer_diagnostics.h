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

/// What processes tell each other when a collective does not go well, over the store instead of the
/// links: who failed and why, who is still alive, who waits in which call.
///
/// Best effort by contract: nothing here throws, and nothing takes longer than a few seconds (with
/// dead or very busy ranks, a dozen), also when the store is gone. While all goes well nothing is
/// written.
namespace tessera::comm {

class PeerDiagnostics {
 public:
  static constexpr const char* kPrefix = "board";  ///< of its keys in a world's store

  /// `store` is this object's own connection, because others may block on theirs; made beforehand,
  /// because connecting takes a name look-up, which may take seconds. `store_host` is where rank 0
  /// hosts it, for errors that can ask nothing any more; "": not said.
  PeerDiagnostics(c10::intrusive_ptr<c10d::Store> store, int rank, std::string store_host = "");

  struct Failure {
    int rank = 0;
    std::string text;
  };

  /// Says that this rank failed by itself. Only the first failure of the world is kept.
  void post_failure(std::string_view text) noexcept;
  std::optional<Failure> first_failure() noexcept;
  /// The same over a connection that the caller holds and may wait on; posting does not throw.
  static std::optional<Failure> first_failure(c10d::Store& store);
  static void post_failure(c10d::Store& store, int rank, std::string_view text) noexcept;

  /// Says that this rank waits in this call of `channel`; returns it and the calls that others of
  /// the group (of a large one, some) said so of, by index. They may have moved on since.
  std::vector<RankCall> meet(const GroupInfo& group, const std::string& channel,
                             const RankCall& mine) noexcept;

  /// Says that this rank ended this call of `channel` with an error, so that peers which wait for
  /// its part do not wait on. Only the first of a call is kept.
  void give_up(const std::string& channel, uint64_t sequence, std::string_view why) noexcept;
  /// Who did, if it was this call.
  std::optional<Failure> who_gave_up(const std::string& channel, uint64_t sequence) noexcept;

  /// Says on which host this rank runs, for errors of the others.
  void post_host(std::string_view host) noexcept;
  /// "rank 2", "ranks 2,3"; with hosts, where they were posted and the store answers:
  /// "ranks 2 (node7), 3 (node7)".
  std::string ranks_text(std::span<const int> ranks) noexcept;
  /// "rank 0", "rank 0 (10.0.0.1)": who hosts the store.
  std::string store_host_text() const;

  /// Says that this rank makes no more calls: its world ends.
  void post_end() noexcept;
  /// Which of the ranks, other than this one, said so.
  std::vector<int> who_ended(std::span<const int> ranks) noexcept;

  /// Says that this process ends at once and reads nothing more here. Where it hosts the store,
  /// waits first until the `others` do so too, so that they can read why; at most a few seconds.
  void post_exit(int others, bool hosts_store) noexcept;

  /// Which of the ranks, other than this one, do not answer; nothing if the store does not.
  std::optional<LivenessProbe::Roll> call_roll(std::span<const int> ranks) noexcept;
  /// Those that did not when they were last asked.
  std::vector<int> silent();

 private:
  struct Line;  // the connection; outlives this object if an answer never comes

  std::shared_ptr<Line> line_;
  int rank_;
  std::string store_host_;
};

}  // namespace tessera::comm
