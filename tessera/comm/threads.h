#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"

/// Ranks as threads of this process: real data, deterministic. Most tests run this way, and it lets
/// several ranks share one GPU.
///
///   run_ranks(4, [](int rank) {
///     auto mesh = comm::init_device_mesh("dp=2,tp=2");
///     ...
///   });
///
/// In each rank's thread, until it ends:
///   - current_world() is the rank's
///   - random ops draw from the rank's own generator (rank_generator.h)
///   - autograd runs on the calling thread; grad mode, inference mode, autocast and so on are as
///     in the thread that called run_ranks
///
/// Collectives (threads/thread_backend.h): all of c10d::Backend. Reductions run in rank order, so
/// each result has the same bits on every rank and in every run. The inputs of an asynchronous call
/// are read when its last rank arrives: do not modify them before wait().
///
/// Errors; a blocked rank never hangs:
///   - A rank throws: every other rank gets a PeerError that names it. run_ranks rethrows the first
///     exception, of the same kind, with the rank in its message and the original nested in it.
///   - Ranks disagree about a call: all ranks of the group get a PeerError that names two of them.
///   - A rank ends while others wait for it, or all ranks wait for each other: a PeerError lists
///     the blocked ranks and their calls.
///   - A rank neither ends nor calls: a PeerError after the timeout.
///
/// A thread that a rank starts itself belongs to no rank. If it communicates, it needs its own
/// EnterRank before other threads of the rank wait for it: a world in which all known threads are
/// blocked is reported as a deadlock. Work::wait is covered by that check,
/// Work::getFuture()->wait() is not.
namespace tessera::comm {

struct TESSERA_API RunRanksOptions {
  /// How long a rank waits for others in one call.
  std::chrono::milliseconds timeout = kDefaultTimeout;
  /// If false, ranks that all wait for each other do so until the timeout. For programs in which
  /// threads without an EnterRank take part.
  bool detect_deadlock = true;
  /// If false, a thread that enters a rank keeps its own grad mode, autocast and so on, then and
  /// when it leaves. For threads that have run code of their own before they enter.
  bool inherit_state = true;
};

/// Runs fn(0), ..., fn(n-1), each in its own thread, and returns when all have ended. May be called
/// from inside a rank: the new world is separate.
TESSERA_API void run_ranks(int n, const std::function<void(int rank)>& fn,
                           const RunRanksOptions& options = {});

class ThreadHub;
class RankGenerators;

/// The building blocks of run_ranks, for callers with their own threads (Python).
///
///   auto ranks = ThreadRanks::create(2);
///   // in thread r:
///   EnterRank here(*ranks, r);
///   try { work(); } catch (...) { ranks->fail(r, std::current_exception()); }
///   // after both have ended:
///   ranks->rethrow_failure();
class TESSERA_API ThreadRanks : public std::enable_shared_from_this<ThreadRanks> {
 public:
  /// Captures the process's seed for the ranks and, with `inherit_state`, the calling thread's
  /// state (grad mode, ...).
  static std::shared_ptr<ThreadRanks> create(int n, const RunRanksOptions& options = {});
  ~ThreadRanks();
  ThreadRanks(const ThreadRanks&) = delete;
  ThreadRanks& operator=(const ThreadRanks&) = delete;

  int size() const;
  /// The world as `rank` sees it.
  const std::shared_ptr<RankWorld>& world(int rank) const;

  /// `rank` ended with this error: wakes the others. Only the first call has an effect.
  void fail(int rank, std::exception_ptr error);
  /// Throws what run_ranks would throw, if a rank failed.
  void rethrow_failure() const;

 private:
  friend class EnterRank;
  struct State;
  explicit ThreadRanks(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

/// While it is alive, the calling thread is that rank. A rank ends with its last EnterRank.
class TESSERA_API EnterRank {
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
