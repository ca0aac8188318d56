#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tessera/collective/call_info.h"
#include "tessera/collective/group_info.h"
#include "tessera/observe/observer_state.h"

/// What a tap and the Work objects that it hands out share, and how they turn a backend's errors
/// into tessera's.
namespace tessera::comm {

struct TapContext {
  std::shared_ptr<const GroupInfo> group;
  std::string channel;  ///< group and tap: what one sequence of calls belongs to
  std::shared_ptr<ObserverState> state;
  /// Zero, or: look after this time whether the ranks that wait do so in the same call. Only for
  /// backends whose Work::wait can be called again after a timeout.
  std::chrono::milliseconds look_after{0};
};

/// A call under way.
struct TappedCall {
  CallInfo info;
  uint64_t sequence = 0;  ///< counts the collectives of a channel; 0 for send and recv
};

/// "rank 2: all_reduce (sum) of 4 float32 in group g (ranks 0,2)": how errors name a call.
std::string call_text(const TapContext& context, const TappedCall& call);

/// Where an error came up: in `pause` the call goes on and only one wait for it ended; in `query`
/// the caller only asks what is known here, and no other rank is asked or informed.
enum class CallPhase { issue, wait, pause, query };

/// To be called in a catch block: throws the current exception as a tessera error that names rank,
/// call and group. Errors of tessera's own pass unchanged.
[[noreturn]] void rethrow_as_tessera(const TapContext& context, const TappedCall& call,
                                     CallPhase phase);

/// Throws PeerError if ranks that wait for each other are in different calls, or one has given up
/// on this call; otherwise returns.
void check_for_failures(const TapContext& context, const TappedCall& call);

}  // namespace tessera::comm
