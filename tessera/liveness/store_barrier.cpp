#include "tessera/liveness/store_barrier.h"

#include <c10/util/Exception.h>

#include "tessera/base/errors.h"
#include "tessera/liveness/liveness_probe.h"
#include "tessera/liveness/peer_diagnostics.h"
#include "tessera/liveness/poll.h"
#include "tessera/liveness/store_text.h"

namespace tessera::comm {
namespace {

// The outcomes of the barrier; a list of absent ranks is the third.
constexpr std::string_view kSame = "same";
constexpr std::string_view kDifferent = "different";

}  // namespace

std::string StoreBarrier::absent() const {
  std::string out;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (store.check({join_text(name, "/here/", i)})) continue;
    out += join_text(out.empty() ? "" : ",", ranks[i]);
  }
  return out;
}

/// The last rank to arrive compares the words for all: each rank reads one key, not one per rank.
std::string_view StoreBarrier::compare(const std::string& word) const {
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (store.get(join_text(name, "/here/", i)) != bytes_of(word)) return kDifferent;
  }
  return kSame;
}

/// Throws if some rank failed, or an awaited one has left.
void StoreBarrier::check_for_failures() const {
  const int me = ranks[static_cast<size_t>(index)];
  // Includes a failure of this rank: it may come from another process with the same number.
  if (const auto failure = PeerDiagnostics::first_failure(board)) {
    throw PeerError(join_text("rank ", me, ": ", purpose, " failed; rank ", failure->rank,
                              " failed first: ", failure->text));
  }
  if (store.add(kLeft, 0) == 0) return;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (store.check({join_text(name, "/here/", i)}) || !LivenessProbe::left(board, ranks[i]))
      continue;
    throw PeerError(
        join_text("rank ", me, ": ", purpose, " failed: rank ", ranks[i], " left the world"));
  }
}

bool StoreBarrier::arrive_and_wait(const std::string& word) const {
  const int me = ranks[static_cast<size_t>(index)];
  const std::string outcome_key = name + "/outcome";
  std::string outcome;
  try {
    store.set(join_text(name, "/here/", index), bytes_of(word));
    if (store.add(name + "/count", 1) == static_cast<int64_t>(ranks.size())) {
      store.compareSet(outcome_key, {}, bytes_of(compare(word)));
    }
    const auto came = [&] { return store.check({outcome_key}); };
    // The first rank to give up decides for all, so that all ranks throw or none. If all arrived,
    // the last one died before it wrote the outcome, or is about to write it. An empty outcome
    // would count as none: compareSet would replace it.
    if (!poll_until(timeout, came, [&] { check_for_failures(); })) {
      const std::string missing = absent();
      store.compareSet(outcome_key, {}, bytes_of(missing.empty() ? compare(word) : missing));
    }
    outcome = text_of(store.get(outcome_key));
  } catch (const c10::Error& e) {
    const std::string host =
        store_host.empty() ? "" : join_text(", as if ", store_host, ", which hosts it, is gone");
    throw PeerError(join_text("rank ", me, ": ", purpose,
                              " failed, the store is gone or does not answer", host, ": ",
                              e.what_without_backtrace()));
  }
  if (outcome == kSame || outcome == kDifferent) return outcome == kSame;
  throw PeerError(join_text("rank ", me, ": ", purpose, ": rank(s) ", outcome,
                            " did not arrive within ", timeout.count(), " ms (of ranks ",
                            list_text(ranks), ")"));
}

void StoreBarrier::cancel() const {
  const int me = ranks[static_cast<size_t>(index)];
  store.compareSet(name + "/outcome", {}, bytes_of(std::to_string(me)));
}

}  // namespace tessera::comm
