#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/collective/call.h"
#include "tessera/collective/move.h"
#include "tessera/threads/thread_failure.h"
#include "tessera/threads/thread_streams.h"

/// State shared by the threads of a world during a collective. Plain data, guarded by ThreadHub's
/// lock unless noted otherwise.
namespace tessera::comm {

class Channel;

/// Blocks a thread until another one signals it. Each thread has its own, so that only threads that
/// can continue are woken.
class ThreadSignal {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// Clears earlier signals.
  void reset();
  /// Returns true if signalled, false if `deadline` came first.
  bool sleep_until(TimePoint deadline);
  void signal();

  static const std::shared_ptr<ThreadSignal>& of_this_thread();

 private:
  std::mutex mutex_;
  std::condition_variable signalled_cv_;
  bool signalled_ = false;
};

/// One collective, or one message, from the first rank that posts it until it is done.
class Round {
 public:
  enum class State : uint8_t {
    open,     ///< some rank has not arrived
    running,  ///< all have arrived, data moves; cannot be stopped any more
    done,     ///< finished or failed
  };

  /// The contribution of one rank.
  struct Seat {
    bool taken = false;
    Call call;
    StreamMarks marks;
    c10::intrusive_ptr<c10::ivalue::Future> future;  ///< created on request
    std::vector<at::Tensor> future_value;
  };

  Round(Channel& channel, uint64_t sequence, size_t seats)
      : channel(channel), sequence(sequence), seats(seats) {}

  bool is_done() const { return state.load(std::memory_order_acquire) == State::done; }
  /// Whether it is running with work that another thread can share.
  bool wants_help() const {
    return state.load(std::memory_order_relaxed) == State::running &&
           next_share.load(std::memory_order_relaxed) < shares.load(std::memory_order_relaxed);
  }

  /// World rank of a seat; -1 for the unknown sender of a recv_any_source.
  int rank_of(size_t seat) const;
  /// Group index of a message's sender; -1 while unknown.
  int source_index() const;
  std::vector<int> missing() const;  ///< world ranks that have not arrived
  /// "all_reduce #3 on group [0-3]", "send to rank 2 with tag 5 on group [0-3]"
  std::string title(size_t seat) const;

  Channel& channel;
  const uint64_t sequence;
  std::atomic<State> state{State::open};  ///< written under the lock; read anywhere
  size_t taken = 0;
  std::vector<Seat> seats;

  // Messages only: seat 0 sends, seat 1 receives.
  bool is_message = false;
  std::atomic<int> source{-1};  ///< a world rank; set when known, read anywhere
  int target = -1;
  int tag = 0;

  // Set before `running`, read by the threads that run shares.
  std::optional<Move> move;
  std::atomic<int> shares{0};
  std::atomic<int> next_share{0};
  std::atomic<int> unfinished_shares{0};

  // Set before `done` and constant from then on, so readers that saw `done` need no lock.
  std::optional<Failure> failure;
  StreamMarks finished;
};

}  // namespace tessera::comm
