#include "tessera/observe/checked.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tessera/base/errors.h"
#include "tessera/liveness/peer_diagnostics.h"
#include "tessera/liveness/poll.h"
#include "tessera/liveness/store_text.h"
#include "tessera/observe/call_history.h"
#include "tessera/observe/recorder.h"
#include "tessera/observe/tap_context.h"

namespace tessera::comm {
namespace {

std::string key_of(const TapContext& context, uint64_t sequence, int index) {
  return join_text(context.channel, "/", sequence, "/", index);
}

}  // namespace

void set_checked(const Observers& rank, bool on) {
  ObserverState& state = *rank.state();
  std::lock_guard lock(state.mutex);
  if (!state.check) return;
  if (on) {
    state.active.fetch_or(ObserverState::kChecked);
  } else {
    state.active.fetch_and(~ObserverState::kChecked);
  }
}

bool checked(const Observers& rank) {
  return (rank.state()->active.load() & ObserverState::kChecked) != 0;
}

CollectiveCheck::CollectiveCheck(Connect connect, std::chrono::milliseconds timeout)
    : connect_(std::move(connect)), timeout_(timeout) {}

void CollectiveCheck::connect() {
  const auto world = connect_();
  store_ = c10::make_intrusive<c10d::PrefixStore>("check", world);
  board_ = c10::make_intrusive<c10d::PrefixStore>(PeerDiagnostics::kPrefix, world);
}

void CollectiveCheck::await(const TapContext& context, const TappedCall& call,
                            const std::vector<std::string>& keys) {
  const bool all_came = poll_until(
      timeout_, [&] { return store_->check(keys); },
      [&] {
        const auto failure = PeerDiagnostics::first_failure(*board_);
        if (!failure || failure->rank == context.group->rank()) return;
        throw PeerError(join_text(call_text(context, call), " failed; rank ", failure->rank,
                                  " failed first: ", failure->text));
      });
  if (all_came) return;
  std::string absent;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (store_->check({keys[i]})) continue;
    absent += join_text(absent.empty() ? "" : ",", context.group->ranks[i]);
  }
  if (absent.empty()) return;  // the last one arrived while we counted
  throw PeerError(join_text(call_text(context, call), ", call ", call.sequence, ": rank(s) ",
                            absent, " did not arrive within ", timeout_.count(),
                            " ms (is checked mode on there?)"));
}

void CollectiveCheck::before(const TapContext& context, const TappedCall& call,
                             std::string_view note) {
  const int size = static_cast<int>(context.group->ranks.size());
  if (size == 1) return;
  std::call_once(connected_, [this] { connect(); });
  std::vector<std::string> keys;
  for (int i = 0; i < size; ++i) keys.push_back(key_of(context, call.sequence, i));
  const std::string& mine = keys[static_cast<size_t>(context.group->index)];
  store_->set(mine, bytes_of(post(call.info, join_text(note, history_note(call.history)))));
  await(context, call, keys);

  std::vector<RankCall> calls;
  const auto entries = store_->multiGet(keys);
  for (int i = 0; i < size; ++i) {
    auto read = read_post(i, call.sequence, text_of(entries[static_cast<size_t>(i)]));
    ensure(read.has_value(), "an entry of the collective check cannot be read");
    calls.push_back(std::move(*read));
  }
  if (const auto differs = first_difference(calls, *context.group)) {
    throw PeerError(join_text(call_text(context, call), ": the ranks disagree: ", *differs));
  }
  // All ranks posted this call, so all have read the previous one.
  std::string last;
  {
    std::lock_guard lock(mutex_);
    last = std::exchange(last_key_[context.channel], mine);
  }
  if (!last.empty()) store_->deleteKey(last);
}

}  // namespace tessera::comm
