#include "tessera/liveness/liveness_probe.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <limits>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/base/text.h"
#include "tessera/liveness/schedule.h"
#include "tessera/liveness/signed_store.h"
#include "tessera/liveness/store_text.h"

namespace tessera::comm {
namespace {

using Clock = Schedule::Clock;
using std::chrono::milliseconds;

constexpr auto kShortest = std::chrono::seconds(2);
constexpr int kTimesTheSlowest = 10;
constexpr milliseconds kPollOtherStores(500);
constexpr auto kProbeEndsWithin = std::chrono::seconds(3);

/// A *bell* is a sequence of store keys that wake the answering threads of a block of ranks. With a
/// bell per rank a probe would be many requests; with a single one all ranks would wake up whenever
/// one leaves.
constexpr int kRanksPerBell = 32;

int bell_of(int rank) { return rank / kRanksPerBell; }
std::string count_key(int bell) { return join_text("asked/", bell); }
std::string bell_key(int bell, int64_t question) { return join_text("bell/", bell, "/", question); }
std::string alive_key(int rank) { return join_text("alive/", rank); }

constexpr const char* kStoreEnds = "store_ends";

constexpr int64_t kLeft = std::numeric_limits<int64_t>::max();  // answers all probes

int64_t number_of(const std::vector<uint8_t>& bytes) {
  const std::string text = text_of(bytes);
  int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

/// Returns the number of the probe. Also rings earlier probes that have not been rung: the ranks
/// that started them may have died between counting and ringing. Oldest first, so that a bell has
/// rung only if all before it have, and an answering thread, which waits for the next one, misses
/// none.
int64_t ring(c10d::Store& store, int bell) {
  const int64_t question = store.add(count_key(bell), 1);
  int64_t first = question;
  while (first > 1 && !store.check({bell_key(bell, first - 1)})) --first;
  for (; first <= question; ++first) store.set(bell_key(bell, first), bytes_of("1"));
  return question;
}

/// The last probe that a rank answered.
int64_t answer_of(c10d::Store& store, int rank) {
  const std::string key = alive_key(rank);
  return store.check({key}) ? number_of(store.get(key)) : 0;
}

bool blocks_without_traffic(c10::intrusive_ptr<c10d::Store> store) {
  for (;;) {
    if (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get())) {
      store = prefixed->getUnderlyingNonPrefixStore();
    } else if (auto* with_code = dynamic_cast<SignedStore*>(store.get())) {
      store = with_code->inner();
    } else {
      return dynamic_cast<c10d::TCPStore*>(store.get()) != nullptr;
    }
  }
}

}  // namespace

/// Outlives the LivenessProbe if the store never responds.
struct LivenessProbe::State {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  bool blocks = false;
  std::atomic<bool> leaving{false};
  std::atomic<bool> dismissed{false};

  void await(const std::string& key) const {
    if (!blocks) {
      while (!leaving && !store->check({key})) Schedule::current().sleep_for(kPollOtherStores);
      return;
    }
    // A wait that times out logs a warning, hence the long timeout.
    constexpr auto kWait = std::chrono::hours(24);
    const auto begin = Schedule::current().now();
    while (!leaving && !store->check({key})) {
      try {
        store->wait({key}, kWait);
      } catch (const std::exception&) {
        if (Schedule::current().now() - begin < kWait) throw;  // not a timeout: the store is gone
      }
    }
  }

  void run() noexcept {
    try {
      const int bell = bell_of(rank);
      int64_t answered = 0;
      store->set(alive_key(rank), bytes_of("0"));
      while (!leaving) {
        await(bell_key(bell, answered + 1));
        if (leaving) return;
        if (store->check({kStoreEnds})) {
          dismissed = true;
          store->set(alive_key(rank), bytes_of(std::to_string(kLeft)));
          return;
        }
        answered = store->add(count_key(bell), 0);
        store->set(alive_key(rank), bytes_of(std::to_string(answered)));
      }
    } catch (const std::exception&) {  // no probe can arrive any more
    }
  }
};

LivenessProbe::LivenessProbe(c10::intrusive_ptr<c10d::Store> answers,
                             c10::intrusive_ptr<c10d::Store> rings, int rank)
    : state_(std::make_shared<State>()), rings_(std::move(rings)), rank_(rank) {
  state_->rank = rank;
  state_->blocks = blocks_without_traffic(answers);
  state_->store = std::move(answers);
  const auto ended = std::make_shared<std::promise<void>>();
  ended_ = ended->get_future();
  Schedule::current().start([state = state_, ended] {
    state->run();
    ended->set_value();
  });
}

LivenessProbe::~LivenessProbe() {
  state_->leaving = true;
  if (dismissed()) return;
  try {
    ring(*rings_, bell_of(rank_));
    if (!ready_within(ended_, kProbeEndsWithin)) return;
    rings_->set(alive_key(rank_), bytes_of(std::to_string(kLeft)));
  } catch (const std::exception&) {  // the store is gone; the thread notices it too
    ready_within(ended_, kProbeEndsWithin);
  }
}

bool LivenessProbe::dismissed() const { return state_->dismissed; }

bool LivenessProbe::left(c10d::Store& store, int rank) { return answer_of(store, rank) == kLeft; }

void LivenessProbe::dismiss(c10d::Store& store, std::span<const int> ranks) {
  store.set(kStoreEnds, bytes_of("1"));
  call(store, ranks);
}

LivenessProbe::ProbeResult LivenessProbe::call(c10d::Store& store, std::span<const int> ranks) {
  std::map<int, int64_t> questions;  // by bell
  for (const int rank : ranks) {
    const int bell = bell_of(rank);
    if (!questions.contains(bell)) questions[bell] = ring(store, bell);
  }
  ProbeResult probed{{ranks.begin(), ranks.end()}, {}};
  const auto came = [&](int rank) {
    const int64_t answer = answer_of(store, rank);
    if (answer == kLeft) probed.left.push_back(rank);
    return answer >= questions[bell_of(rank)];
  };
  const auto begin = Schedule::current().now();
  Clock::duration patience = kShortest;
  // Every survivor probes, and reads one key per rank: in a large group they poll less often.
  const milliseconds pause(10 + std::ssize(ranks));
  for (;;) {
    const auto looked = Schedule::current().now() - begin;
    if (std::erase_if(probed.missing, came) > 0) {
      patience = std::clamp<Clock::duration>(looked * kTimesTheSlowest, patience, kLongest);
    }
    if (probed.missing.empty() || looked > patience) return probed;
    Schedule::current().sleep_for(pause);
  }
}

}  // namespace tessera::comm
