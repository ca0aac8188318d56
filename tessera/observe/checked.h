#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tessera/base/api.h"
#include "tessera/collective/call_info.h"

/// Checked mode: before each collective the ranks of its group compare their calls. On a difference
/// every one of them throws PeerError, naming two ranks and the difference:
///
///   all_reduce: rank 0 calls all_reduce (sum) of 4 float32,
///               rank 1 calls all_reduce (sum) of 5 float32
///
/// Compared: the op, dtype, shapes, reduction, root, the pieces of an all_to_all between each pair,
/// and the CallSite's note (the sharding, for calls by the library). Not compared: send and recv.
///
/// For debugging: a collective then costs a few round trips to the store (0.2 to 1 ms), and
/// asynchronous ones block until all ranks have issued them. Enable it at the same point on every
/// rank, or by TESSERA_CHECK_COLLECTIVES=1. Only for processes; thread ranks always compare.
namespace tessera::comm {

class Observers;
struct TapContext;
struct TappedCall;

/// Enables or disables it for the calls of a rank from now on, given by its RankWorld; no effect on
/// thread and fake ranks.
TESSERA_API void set_checked(const Observers& rank, bool on);
TESSERA_API bool checked(const Observers& rank);

/// The comparison between processes: over the store, two keys per rank and group at a time.
class TESSERA_API CollectiveCheck {
 public:
  /// Connects to the world's store by `connect` on first use. A separate connection, because others
  /// may block on theirs.
  using Connect = std::function<c10::intrusive_ptr<c10d::Store>()>;
  CollectiveCheck(Connect connect, std::chrono::milliseconds timeout);

  /// Blocks until all ranks of the group are about to make the same call. Throws PeerError if they
  /// differ, or naming those that did not arrive within the timeout.
  void before(const TapContext& context, const TappedCall& call, std::string_view note);

 private:
  void await(const TapContext& context, const TappedCall& call,
             const std::vector<std::string>& keys);

  void connect();

  Connect connect_;
  c10::intrusive_ptr<c10d::Store> store_;  // null until it is needed
  c10::intrusive_ptr<c10d::Store> board_;  // peer diagnostics, over the same connection
  std::chrono::milliseconds timeout_;
  std::once_flag connected_;
  std::mutex mutex_;                             // guards the rest; not held while waiting
  std::map<std::string, std::string> last_key_;  // by channel: mine, to delete later
};

}  // namespace tessera::comm
