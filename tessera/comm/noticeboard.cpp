#include "tessera/comm/noticeboard.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <future>
#include <thread>

#include "tessera/base/text.h"
#include "tessera/comm/poll.h"

namespace tessera::comm {
namespace {

constexpr auto kAnswerWithin = std::chrono::seconds(3);

std::vector<uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string alive_key(int rank) { return join_text("alive/", rank); }

std::string call_key(const std::string& channel, int index) {
  return join_text("call/", channel, "/", index);
}

/// Whose calls a rank of a group reads: all in a small one, else the first and the next few, so
/// that the ranks of a large one do not drown the store. Somebody reads everybody.
std::vector<int> some_of(int size, int index) {
  constexpr int kMost = 16;
  std::vector<int> whom;
  for (int step = 1; step < size && step <= kMost; ++step) whom.push_back((index + step) % size);
  if (index != 0 && std::ranges::find(whom, 0) == whom.end()) whom.push_back(0);
  return whom;
}

/// Splits "number rest".
std::optional<std::pair<uint64_t, std::string>> numbered(const std::string& text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end == text.data() + text.size()) return std::nullopt;
  return std::pair(number, std::string(end + 1, text.data() + text.size()));
}

std::string failure_text(c10d::Store& store) {
  return store.check({"failure"}) ? text_of(store.get("failure")) : std::string();
}

std::optional<Noticeboard::Failure> failure_of(const std::string& text) {
  const auto entry = numbered(text);
  if (!entry) return std::nullopt;
  return Noticeboard::Failure{static_cast<int>(entry->first), entry->second};
}

}  // namespace

struct Noticeboard::Line {
  std::mutex mutex;
  c10::intrusive_ptr<c10d::Store> store;
  std::atomic<bool> dead{false};  ///< it once did not answer: never ask again

  /// Runs `ask(store)` on a thread of its own and gives up after a while: a store whose host
  /// vanished from the network answers neither yes nor no. `nothing` if it failed or gave up.
  template <typename Answer, typename Ask>
  static Answer run(const std::shared_ptr<Line>& line, Answer nothing, Ask ask) noexcept {
    try {
      if (line->dead) return nothing;
      std::packaged_task<Answer()> task([line, ask = std::move(ask)] {
        std::lock_guard lock(line->mutex);
        return ask(*line->store);
      });
      auto answer = task.get_future();
      std::thread(std::move(task)).detach();
      if (answer.wait_for(kAnswerWithin) == std::future_status::ready) return answer.get();
      line->dead = true;
    } catch (const std::exception&) {  // the store is gone; the caller has the real error in hand
    }
    return nothing;
  }
};

Noticeboard::Noticeboard(c10::intrusive_ptr<c10d::Store> store, int rank)
    : line_(std::make_shared<Line>()), rank_(rank) {
  line_->store = std::move(store);
}

void Noticeboard::post_failure(std::string_view text) noexcept {
  const std::string entry = join_text(rank_, " ", text);
  Line::run(line_, false, [entry](c10d::Store& store) {
    store.compareSet("failure", {}, bytes_of(entry));
    return true;
  });
}

std::optional<Noticeboard::Failure> Noticeboard::first_failure(c10d::Store& store) {
  return failure_of(failure_text(store));
}

std::optional<Noticeboard::Failure> Noticeboard::first_failure() noexcept {
  return failure_of(Line::run(line_, std::string(), failure_text));
}

std::vector<RankCall> Noticeboard::meet(const GroupInfo& group, const std::string& channel,
                                        const RankCall& mine) noexcept {
  const std::string entry = join_text(mine.sequence, " ", encode(mine.call), "\n", mine.note);
  const auto whom = some_of(static_cast<int>(group.ranks.size()), mine.index);
  auto calls = Line::run(line_, std::vector<RankCall>{}, [=, rank = rank_](c10d::Store& store) {
    store.set(alive_key(rank), bytes_of("1"));
    store.set(call_key(channel, mine.index), bytes_of(entry));
    std::vector<RankCall> found;
    for (const int index : whom) {
      const std::string key = call_key(channel, index);
      if (!store.check({key})) continue;
      const auto said = numbered(text_of(store.get(key)));
      if (!said) continue;
      const size_t line_end = said->second.find('\n');
      auto call = decode(said->second.substr(0, line_end));
      if (!call || line_end == std::string::npos) continue;
      found.push_back({index, said->first, std::move(*call), said->second.substr(line_end + 1)});
    }
    return found;
  });
  calls.push_back(mine);
  std::ranges::sort(calls, {}, &RankCall::index);  // so that all ranks name the same two
  return calls;
}

std::optional<std::vector<int>> Noticeboard::silent(const GroupInfo& group,
                                                    std::chrono::milliseconds patience) noexcept {
  std::vector<int> others;
  std::vector<std::string> keys;
  for (const int rank : group.ranks) {
    if (rank == rank_) continue;
    others.push_back(rank);
    keys.push_back(alive_key(rank));
  }
  struct Answer {
    bool came = false;
    std::vector<int> missing;
  };
  auto answer = Line::run(line_, Answer{}, [=, rank = rank_](c10d::Store& store) {
    store.set(alive_key(rank), bytes_of("1"));
    Answer found{true, others};
    const bool all = poll_until(patience, [&] { return store.check(keys); });
    std::erase_if(found.missing, [&](int other) { return all || store.check({alive_key(other)}); });
    return found;
  });
  if (!answer.came) return std::nullopt;
  return std::move(answer.missing);
}

}  // namespace tessera::comm
