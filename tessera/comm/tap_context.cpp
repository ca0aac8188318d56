#include "tessera/comm/tap_context.h"

#include <c10/util/Exception.h>

#include "tessera/base/errors.h"
#include "tessera/comm/noticeboard.h"

namespace tessera::comm {
namespace {

/// Time that ranks which lose a link at the same moment get to say that they are alive.
constexpr auto kSignOfLife = std::chrono::seconds(2);

std::string sentence(const TapContext& context, const TappedCall& call) {
  return join_text("rank ", context.group->rank(), ": ", call.info.to_text(*context.group), " in ",
                   context.group->to_text());
}

std::optional<std::string> mismatch(const TapContext& context, const TappedCall& call,
                                    Noticeboard& board) {
  if (call.sequence == 0) return std::nullopt;
  const auto calls =
      board.meet(*context.group, context.channel, {context.group->index, call.sequence, call.info});
  return first_difference(calls, *context.group);
}

/// What can be found out about a failed link; "" if nothing.
std::string likely_cause(const TapContext& context, const TappedCall& call) {
  const auto board = context.state->board_now();
  if (!board) return {};
  if (const auto first = board->first_failure(); first && first->rank != context.group->rank()) {
    return join_text("; rank ", first->rank, " failed first: ", first->text);
  }
  const auto differs = mismatch(context, call, *board);
  if (differs) return join_text("; the ranks disagree: ", *differs);
  const auto silent = board->silent(*context.group, kSignOfLife);
  if (!silent) return "; the store does not answer either";
  if (silent->empty()) return {};
  return join_text("; no sign of life from rank", silent->size() > 1 ? "s " : " ",
                   list_text(std::span<const int>(*silent)));
}

[[noreturn]] void throw_peer_error(const TapContext& context, const TappedCall& call,
                                   std::string_view what) {
  context.state->failed = true;
  throw PeerError(
      join_text(sentence(context, call), " failed: ", what, likely_cause(context, call)));
}

bool says_unsupported(std::string_view what) {
  return what.find("not support") != std::string_view::npos ||
         what.find("not implement") != std::string_view::npos ||
         what.find("nsupported") != std::string_view::npos;
}

}  // namespace

void rethrow_as_tessera(const TapContext& context, const TappedCall& call, CallPhase phase) {
  try {
    throw;
  } catch (const PeerError&) {
    context.state->failed = true;
    throw;
  } catch (const Error&) {
    throw;
  } catch (const c10::DistError& e) {
    throw_peer_error(context, call, e.what_without_backtrace());
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& e) {
    const std::string what = e.what_without_backtrace();
    if (says_unsupported(what)) throw NotSupported(join_text(sentence(context, call), ": ", what));
    // Backends check their arguments before they start; what goes wrong later is the link.
    if (phase == CallPhase::wait) throw_peer_error(context, call, what);
    throw InvalidArgument(join_text(sentence(context, call), ": ", what));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    throw_peer_error(context, call, e.what());
  }
}

void look_for_mismatch(const TapContext& context, const TappedCall& call) {
  const auto board = context.state->board_now();
  if (!board) return;
  const auto differs = mismatch(context, call, *board);
  if (!differs) return;
  context.state->failed = true;
  throw PeerError(
      join_text(sentence(context, call), " waits for peers that do something else: ", *differs));
}

}  // namespace tessera::comm
