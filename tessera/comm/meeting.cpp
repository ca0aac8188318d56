#include "tessera/comm/meeting.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>

#include "tessera/base/errors.h"
#include "tessera/comm/noticeboard.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// How often a rank that waits looks whether another one gave up.
constexpr auto kLookAgain = std::chrono::milliseconds(500);

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

std::string Meeting::absent() const {
  std::string out;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!store.check({join_text(name, "/here/", i)})) {
      out += join_text(out.empty() ? "" : ",", ranks[i]);
    }
  }
  return out;
}

bool Meeting::attend(const std::string& word) const {
  const int me = ranks[static_cast<size_t>(index)];
  const std::string go = name + "/go";
  const auto deadline = Clock::now() + timeout;
  try {
    store.set(join_text(name, "/here/", index), bytes_of(word));
    const auto size = static_cast<int64_t>(ranks.size());
    if (store.add(name + "/count", 1) == size) {
      // The last to come compares the words for all: each rank reads one key, not one per rank.
      bool same = true;
      for (int64_t i = 0; i < size; ++i) {
        same = same && store.get(join_text(name, "/here/", i)) == bytes_of(word);
      }
      store.set(go, bytes_of(same ? "same" : "different"));
      return same;
    }
    for (;;) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      if (left.count() <= 0) break;
      try {
        store.wait({go}, std::min(left, std::chrono::milliseconds(kLookAgain)));
        return store.get(go) == bytes_of("same");
      } catch (const c10::DistStoreError&) {  // not yet; the loop knows when to give up
      }
      const auto failure = board == nullptr ? std::nullopt : board->first_failure();
      if (failure && failure->rank != me) {
        throw PeerError(join_text("rank ", me, ": ", purpose, " failed; rank ", failure->rank,
                                  " failed first: ", failure->text));
      }
    }
    throw PeerError(join_text("rank ", me, ": ", purpose, ": rank(s) ", absent(),
                              " did not come within ", timeout.count(), " ms (of ranks ",
                              list_text(ranks), ")"));
  } catch (const c10::Error& e) {
    throw PeerError(join_text("rank ", me, ": ", purpose, " failed, the store is gone: ",
                              e.what_without_backtrace()));
  }
}

}  // namespace tessera::comm
