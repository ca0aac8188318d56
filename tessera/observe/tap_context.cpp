#include "tessera/observe/tap_context.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/collective/timed_out.h"
#include "tessera/liveness/peer_diagnostics.h"
#include "tessera/observe/call_history.h"

namespace tessera::comm {
namespace {

std::vector<RankCall> exchange_calls(const TapContext& context, const TappedCall& call,
                                     PeerDiagnostics& board) {
  if (call.sequence == 0) return {};
  return board.exchange_calls(
      *context.group, context.channel,
      {context.group->index, call.sequence, call.info, history_note(call.history)});
}

/// An error of the call that is being handled.
struct CallError {
  std::string what;
  bool timed_out = false;
};

/// Of libtorch's backends. Gloo throws one type for timeouts and closed connections, so only the
/// text distinguishes them; elapsed time does not, since a call may be waited for long after it
/// failed.
CallError libtorch_error(std::string what) {
  const bool timed_out = what.find("imed out") != std::string::npos;
  return {std::move(what), timed_out};
}

/// For a call that timed out: the live ranks that never made it. In a large group, as far as this
/// rank has read.
std::vector<int> who_is_late(const TapContext& context, const TappedCall& call,
                             std::span<const RankCall> calls,
                             const LivenessProbe::ProbeResult& probed) {
  if (call.sequence == 0) return {};
  std::vector<int> late = context.group->ranks;
  for (const RankCall& other : calls) {
    if (other.sequence >= call.sequence) {
      std::erase(late, context.group->ranks[static_cast<size_t>(other.index)]);
    }
  }
  const auto is_gone = [&](int rank) {
    return std::ranges::count(probed.missing, rank) + std::ranges::count(probed.left, rank) > 0;
  };
  std::erase_if(late, is_gone);
  return late;
}

/// The connections of a process that ended are closed, so a call ends immediately; those of a
/// stopped one stay open until the timeout.
std::string who_is_missing(const TapContext& context, const TappedCall& call, bool timed_out,
                           std::span<const RankCall> calls,
                           const LivenessProbe::ProbeResult& probed, PeerDiagnostics& board) {
  std::string out;
  if (!probed.missing.empty()) {
    out += join_text("; no sign of life from ", board.ranks_with_hosts(probed.missing),
                     timed_out ? " (stopped or unreachable: no connection was closed)" : "");
  }
  if (!probed.left.empty())
    out += join_text("; ", board.ranks_with_hosts(probed.left), " left the world");
  const auto late = timed_out ? who_is_late(context, call, calls, probed) : std::vector<int>();
  if (!late.empty()) {
    out += join_text("; alive, but not in this call: ", board.ranks_with_hosts(late));
  }
  return out;
}

/// What can be found out about a failed call; "" if nothing.
std::string likely_cause(const TapContext& context, const TappedCall& call, bool timed_out) {
  const auto board = context.state->board_now();
  if (!board) return {};
  if (const auto first = board->first_failure(); first && first->rank != context.group->rank()) {
    return join_text("; rank ", first->rank, " failed first: ", first->text);
  }
  const auto calls = exchange_calls(context, call, *board);
  if (const auto differs = first_difference(calls, *context.group)) {
    return join_text("; the ranks disagree: ", *differs);
  }
  if (const auto ended = board->who_ended(context.group->ranks); !ended.empty()) {
    return join_text("; ", board->ranks_with_hosts(ended),
                     " ended, as after the last call of its program, and will not take part");
  }
  const auto probed = board->probe(context.group->ranks);
  if (!probed) {
    return join_text("; the store does not answer either, as if ", board->store_host_text(),
                     ", which hosts it, is gone");
  }
  return who_is_missing(context, call, timed_out, calls, *probed, *board);
}

[[noreturn]] void throw_peer_error(const TapContext& context, const TappedCall& call,
                                   CallPhase phase, const CallError& error) {
  context.state->failed = true;
  if (phase == CallPhase::query) {
    throw PeerError(join_text(call_text(context, call), " failed: ", error.what));
  }
  const std::string why = join_text(error.what, likely_cause(context, call, error.timed_out));
  const auto board = context.state->board_now();
  if (board && call.sequence != 0 && phase != CallPhase::pause) {
    board->give_up(context.channel, call.sequence, why);
  }
  throw PeerError(join_text(call_text(context, call), " failed: ", why));
}

/// c10d::Backend reports a collective that a backend lacks as a plain c10::Error with such a text.
bool says_unsupported(std::string_view what) {
  return what.find("not support") != std::string_view::npos ||
         what.find("not implement") != std::string_view::npos ||
         what.find("nsupported") != std::string_view::npos;
}

}  // namespace

std::string call_text(const TapContext& context, const TappedCall& call) {
  return join_text("rank ", context.group->rank(), ": ", call.info.to_text(*context.group), " in ",
                   context.group->to_text());
}

void rethrow_as_tessera(const TapContext& context, const TappedCall& call, CallPhase phase) {
  try {
    throw;
  } catch (const PeerError&) {
    context.state->failed = true;
    throw;
  } catch (const Error&) {
    throw;
  } catch (const c10::DistError& e) {
    throw_peer_error(context, call, phase, libtorch_error(e.what_without_backtrace()));
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::NotImplementedError& e) {
    throw NotSupported(join_text(call_text(context, call), ": ", e.what_without_backtrace()));
  } catch (const c10::Error& e) {
    const std::string what = e.what_without_backtrace();
    if (says_unsupported(what)) throw NotSupported(join_text(call_text(context, call), ": ", what));
    // Backends check their arguments before they start; later errors are of the connection.
    if (phase != CallPhase::issue) throw_peer_error(context, call, phase, libtorch_error(what));
    throw InvalidArgument(join_text(call_text(context, call), ": ", what));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const TimedOut& e) {
    throw_peer_error(context, call, phase, {.what = e.what(), .timed_out = true});
  } catch (const std::exception& e) {
    throw_peer_error(context, call, phase, libtorch_error(e.what()));
  }
}

void check_for_failures(const TapContext& context, const TappedCall& call) {
  const auto board = context.state->board_now();
  if (!board || call.sequence == 0) return;
  if (const auto differs =
          first_difference(exchange_calls(context, call, *board), *context.group)) {
    context.state->failed = true;
    board->give_up(context.channel, call.sequence, *differs);  // in large groups not all is read
    throw PeerError(
        join_text(call_text(context, call), " waits for peers that do something else: ", *differs));
  }
  const auto gave_up = board->abandoned_by(context.channel, call.sequence);
  if (!gave_up || gave_up->rank == context.group->rank()) return;
  context.state->failed = true;
  throw PeerError(join_text(call_text(context, call), " failed: rank ", gave_up->rank,
                            " gave up on it: ", gave_up->text));
}

}  // namespace tessera::comm
