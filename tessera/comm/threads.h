#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"

/// Ranks as threads of this process: real data, deterministic, right on every rank. How most tests
/// run, and how several ranks share one GPU.
///
///   run_ranks(4, [](int rank) {
///     auto mesh = comm::init_device_mesh("dp=2,tp=2");
///     ...
///   });
///
/// What holds in each rank's thread, until it ends:
///   - current_world() is the rank's
///   - random ops draw from the rank's own generator (rank_generator.h)
///   - autograd runs on the calling thread; grad mode, inference mode, autocast and the like are as
///     in the thread that called run_ranks
///
/// Collectives (thread_backend.h): all of c10d::Backend. Reductions go in rank order, so each
/// result has the same bits on every rank and in every run. The inputs of an asynchronous call are
/// read when its last rank has come: leave them alone until wait().
///
/// Errors; a rank that waits never hangs:
///   - A rank throws: every other rank gets a PeerError that names it. run_ranks rethrows the first
///     exception, of the same kind, with the rank in its message and the original nested in it.
///   - Ranks disagree about a call: all ranks of the group get a PeerError that names two of them.
///   - A rank ends while others wait for it, or all ranks wait for each other: a PeerError says
///     which ranks wait, and in which calls.
///   - A rank neither ends nor calls: a PeerError after the timeout.
///
/// A thread that a rank starts itself belongs to no rank. If it communicates, give it an EnterRank
/// of its own before other threads of the rank wait for what it does: a world in which all known
/// threads wait is taken for a deadlock. Work::getFuture()->wait() is outside of that check;
/// Work::wait is inside.
namespace tessera::comm {

struct RunRanksOptions {
  /// How long a rank waits for others in one call.
  std::chrono::milliseconds timeout = kDefaultTimeout;
  /// Off: ranks that all wait for each other do so until the timeout. For programs in which threads
  /// without an EnterRank take part.
  bool detect_deadlock = true;
};

/// Runs fn(0), ..., fn(n-1), each in a thread of its own, and returns when all have ended. May be
/// called from inside a rank: the new world is a separate one.
void run_ranks(int n, const std::function<void(int rank)>& fn, const RunRanksOptions& options = {});

class ThreadHub;
class RankGenerators;

/// The parts of run_ranks, for callers that bring their own threads (Python does).
///
///   auto ranks = ThreadRanks::create(2);
///   // in thread r:
///   EnterRank here(*ranks, r);
///   try { work(); } catch (...) { ranks->fail(r, std::current_exception()); }
///   // after both have ended:
///   ranks->rethrow_failure();
class ThreadRanks : public std::enable_shared_from_this<ThreadRanks> {
 public:
  /// Takes the calling thread's state (grad mode, ...) and the process's seed for the ranks to be.
  static std::shared_ptr<ThreadRanks> create(int n, const RunRanksOptions& options = {});
  ~ThreadRanks();
  ThreadRanks(const ThreadRanks&) = delete;
  ThreadRanks& operator=(const ThreadRanks&) = delete;

  int size() const;
  /// The world as `rank` sees it.
  const std::shared_ptr<RankWorld>& world(int rank) const;

  /// `rank` ends with this error: the others are woken. Only the first call counts.
  void fail(int rank, std::exception_ptr error);
  /// Throws what run_ranks would throw, if a rank failed.
  void rethrow_failure() const;

 private:
  friend class EnterRank;
  struct State;
  explicit ThreadRanks(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

/// While it lives, the calling thread is that rank. A rank has ended when its last EnterRank goes.
class EnterRank {
 public:
  EnterRank(ThreadRanks& ranks, int rank);
  ~EnterRank();
  EnterRank(const EnterRank&) = delete;
  EnterRank& operator=(const EnterRank&) = delete;

 private:
  struct Guards;
  std::unique_ptr<Guards> guards_;
};

}  // namespace tessera::comm
