#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/collective/call_info.h"

/// Checked mode: before each collective the ranks of its group compare what they are about to do,
/// and on a difference every one of them throws PeerError that names two ranks and what differs:
///
///   all_reduce: rank 0 calls all_reduce (sum) of 4 float32,
///               rank 1 calls all_reduce (sum) of 5 float32
///
/// Compared are the op, dtype, shapes, reduction, root, the pieces of an all_to_all between each
/// pair, and CallSite's note (the sharding, where the library calls). Not compared: send and recv.
///
/// For debugging: a collective then costs a few round trips to the store (0.2 to 1 ms) and async
/// ones block until all ranks have issued them. Turn it on at the same place on every rank, or by
/// TESSERA_CHECK_COLLECTIVES=1. Only processes need it; thread ranks always compare.
namespace tessera::comm {

class Observers;
struct TapContext;
struct TappedCall;

/// Turns it on or off for the calls of a rank from now on, given by its RankWorld; nothing happens
/// for thread and fake ranks.
void set_checked(const Observers& rank, bool on);
bool checked(const Observers& rank);

/// How processes compare: over the store, two keys a rank and group at a time.
class CollectiveCheck {
 public:
  /// Connects by `connect` to the world's store when that is first needed: to a connection of its
  /// own, because others may block on theirs.
  using Connect = std::function<c10::intrusive_ptr<c10d::Store>()>;
  CollectiveCheck(Connect connect, std::chrono::milliseconds timeout);

  /// Returns when all ranks of the group are about to make the same call. PeerError if they
  /// differ, or names those that did not come within the timeout.
  void before(const TapContext& context, const TappedCall& call, std::string_view note);

 private:
  void await(const TapContext& context, const TappedCall& call,
             const std::vector<std::string>& keys);

  void connect();

  Connect connect_;
  c10::intrusive_ptr<c10d::Store> store_;  // null until it is needed
  c10::intrusive_ptr<c10d::Store> board_;  // the noticeboard, over the same connection
  std::chrono::milliseconds timeout_;
  std::once_flag connected_;
  std::mutex mutex_;                             // guards what follows; not held while ranks wait
  std::map<std::string, std::string> last_key_;  // by channel: mine, to delete once all moved on
};

}  // namespace tessera::comm
