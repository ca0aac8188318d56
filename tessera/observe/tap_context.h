#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tessera/collective/call_info.h"
#include "tessera/collective/group_info.h"
#include "tessera/observe/observer_state.h"

/// State shared by a tap and its Work objects, and the conversion of a backend's errors to
/// tessera's.
namespace tessera::comm {

struct TapContext {
  std::shared_ptr<const GroupInfo> group;
  std::string channel;  ///< group and tap; identifies one sequence of calls
  std::shared_ptr<ObserverState> state;
  /// If not zero: after this time, check whether the waiting ranks are in the same call. Only for
  /// backends whose Work::wait can be called again after a timeout.
  std::chrono::milliseconds look_after{0};
};

/// A call in progress.
struct TappedCall {
  CallInfo info;
  uint64_t sequence = 0;  ///< counts the collectives of a channel; 0 for send and recv
  uint64_t history = 0;   ///< CallHistory
};

/// How errors name a call: "rank 2: all_reduce (sum) of 4 float32 in group g (ranks 0,2)".
std::string call_text(const TapContext& context, const TappedCall& call);

/// Where an error was raised. `pause`: the call continues and only one wait for it ended; `query`:
/// the caller only reads local state, and no other rank is contacted.
enum class CallPhase { issue, wait, pause, query };

/// To be called in a catch block: rethrows the current exception as a tessera error that names
/// rank, call and group. tessera's own errors pass unchanged.
[[noreturn]] void rethrow_as_tessera(const TapContext& context, const TappedCall& call,
                                     CallPhase phase);

/// Throws PeerError if ranks that wait for each other are in different calls, or one has given up
/// on this call; otherwise returns.
void check_for_failures(const TapContext& context, const TappedCall& call);

}  // namespace tessera::comm
