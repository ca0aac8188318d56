#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/threads/thread_round.h"

/// Synchronizes ranks that are threads of one process.
///
/// Every collective of a group has a number; each rank counts its own calls. A rank that posts call
/// number k takes its seat in round k of that group. The rank that takes the last seat moves the
/// data (or, if there is much, wakes the others to help). So there is no background thread, and a
/// world in which every thread is blocked is a deadlock, which is reported immediately.
///
/// One lock guards the whole hub. It is held for bookkeeping only, never while data moves.
namespace tessera::comm {

class ThreadHub;

/// The rounds of one group.
class Channel {
 public:
  Channel(const ThreadHub& hub, std::vector<int> ranks);

  const std::vector<int>& ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  std::string to_text() const;  ///< "group [0-3] of tessera.t1"

 private:
  friend class ThreadHub;

  const ThreadHub& hub_;
  std::vector<int> ranks_;
  std::vector<uint64_t> posted_;             // by index: calls so far
  std::deque<std::shared_ptr<Round>> open_;  // the front one has number first_
  uint64_t first_ = 0;
  std::vector<std::shared_ptr<Round>> messages_;  // unmatched sends and receives
};

class ThreadHub {
 public:
  using Milliseconds = std::chrono::milliseconds;

  struct FirstFailure {
    int rank;
    std::exception_ptr error;
  };

  ThreadHub(int size, std::string name, bool detect_deadlock);

  int size() const { return static_cast<int>(ranks_.size()); }
  const std::string& name() const { return name_; }

  /// The channel of a group; lives as long as the hub.
  Channel& channel(std::span<const int> ranks);

  /// While it is alive, the calling thread acts for `rank`. When the last such thread of a rank
  /// ends, the rank has ended: ranks that need it for a round get an error immediately.
  class Presence {
   public:
    Presence(ThreadHub& hub, int rank);
    ~Presence();
    Presence(const Presence&) = delete;
    Presence& operator=(const Presence&) = delete;

   private:
    ThreadHub& hub_;
    int rank_;
    const ThreadHub* previous_;
  };

  /// `rank` failed: every open round of every rank ends in a PeerError that names it, and no more
  /// calls can be posted. Only the first failure is kept; later ones are consequences.
  void fail(int rank, std::exception_ptr error);
  std::optional<FirstFailure> first_failure() const;

  /// Takes seat `index` of the channel's next round for that rank. May move the data. Throws if the
  /// round has failed or fails by this call.
  std::shared_ptr<Round> post(Channel& channel, int index, Call call);

  /// Posts a message between two ranks of the channel; `peer` is an index, -1 for any source.
  std::shared_ptr<Round> post_message(Channel& channel, int index, int peer, int tag, Call call);

  /// Blocks until the round is done; throws if it failed. With `limit`, only this wait ends after
  /// that long; without, the round fails for all ranks after `timeout`.
  void wait(Round& round, size_t seat, std::optional<Milliseconds> limit, Milliseconds timeout);

  /// A future that completes with the round.
  c10::intrusive_ptr<c10::ivalue::Future> future(Round& round, size_t seat,
                                                 std::vector<at::Tensor> value);

  /// Ends the channel's open rounds, or one round, in a PeerError that names the rank which
  /// aborted.
  void abort(Channel& channel, int index);
  void abort(Round& round, size_t seat);

  uint64_t posted(const Channel& channel, int index) const;

 private:
  struct RankState {
    int threads = 0;
    bool ended = false;
  };
  struct Blocked {
    std::shared_ptr<ThreadSignal> sleeper;
    Round* round;
    size_t seat;
    bool counted;  // for deadlock detection: no own limit, and a thread of this world
  };

  // Actions deferred until the lock is released: waking threads, completing futures (whose
  // callbacks are user code), releasing tensors.
  class AfterUnlock;
  using Seat = Round::Seat;

  void enter(int rank);
  void leave(int rank);
  void run(Round& round);
  void run_message(Round& round);
  void help(Round& round);
  void run_share(Round& round, int share);
  void finish_unlocked(Round& round, std::optional<Failure> failure);
  void block_until_done(Round& round, size_t seat, std::optional<Milliseconds> limit,
                        Milliseconds timeout);
  void give_up(Round& round, size_t seat, std::optional<Milliseconds> limit, Milliseconds timeout);

  // With the lock held:
  void require_running(const Channel& channel, const Call& call) const;
  std::optional<std::string> ended_rank(const Channel& channel, uint64_t number) const;
  std::optional<std::string> ended_partner(const Channel& channel, const Round& message) const;
  std::shared_ptr<Round> take_partner(Channel& channel, size_t my_seat, const Round& mine);
  void forget_blocked(const Round& round, const ThreadSignal* sleeper, AfterUnlock* after);
  void finish(Round& round, std::optional<Failure> failure, AfterUnlock& after);
  void fail_open(Round& round, Failure why, AfterUnlock& after);
  void fail_rounds_of(Channel& channel, const std::string& why, AfterUnlock& after);
  void stop(Failure why, AfterUnlock& after);
  void fail_rounds_that_need(int rank, AfterUnlock& after);
  void detect_deadlock(AfterUnlock& after);
  std::string blocked_text() const;

  const std::string name_;
  const bool detect_deadlock_;
  mutable std::mutex mutex_;
  std::vector<RankState> ranks_;
  int live_threads_;  // expected or present threads that act for a rank
  int ended_ranks_ = 0;
  int counted_blocked_ = 0;
  std::vector<Blocked> blocked_;
  std::map<std::vector<int>, std::unique_ptr<Channel>> channels_;
  std::optional<FirstFailure> first_failure_;
  std::optional<Failure> stopped_;  // why no more calls can be posted
};

}  // namespace tessera::comm
