#pragma once

#include <string_view>
#include <utility>

#include "tessera/base/errors.h"

/// When a rank fails by itself, the others learn of it: their collectives with this rank end, and
/// the errors say "rank 1 failed first: ...".
///
///   or_report(*world, [&] { train(world); });
///
/// Best effort, for processes; thread ranks are told by run_ranks.
namespace tessera::comm {

class RankWorld;

/// Posts why this rank cannot go on and closes its links. The world can communicate no more.
void report_failure(RankWorld& world, std::string_view why);

/// Closes this rank's links without a reason of its own: for one that fails because a peer did.
void close_links(RankWorld& world);

/// Runs `body`. If it throws, tells the other ranks and lets the exception pass.
template <typename Body>
decltype(auto) or_report(RankWorld& world, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const PeerError&) {
    close_links(world);
    throw;
  } catch (const std::exception& e) {
    report_failure(world, e.what());
    throw;
  }
}

}  // namespace tessera::comm
