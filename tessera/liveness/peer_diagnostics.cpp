#include "tessera/liveness/peer_diagnostics.h"

#include <algorithm>
#include <atomic>
#include <charconv>

#include "tessera/base/text.h"
#include "tessera/liveness/call_with_timeout.h"
#include "tessera/liveness/poll.h"
#include "tessera/liveness/store_text.h"

namespace tessera::comm {
namespace {

constexpr auto kAnswerWithin = std::chrono::seconds(3);
constexpr auto kHostStays = std::chrono::seconds(5);
constexpr const char* kExits = "exits";

std::string ended_key(int rank) { return join_text("ended/", rank); }

std::string call_key(const std::string& channel, int index) {
  return join_text("call/", channel, "/", index);
}

std::string given_up_key(const std::string& channel, uint64_t sequence) {
  return join_text("given_up/", channel, "/", sequence);
}

std::string host_key(int rank) { return join_text("host/", rank); }

/// Whose calls a rank of a group reads: all in a small one, else the first and the next few, to
/// limit the load on the store. Together the ranks read all calls.
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

std::string text_if_any(c10d::Store& store, const std::string& key) {
  return store.check({key}) ? text_of(store.get(key)) : std::string();
}

std::optional<PeerDiagnostics::Failure> failure_of(const std::string& text) {
  const auto entry = numbered(text);
  if (!entry) return std::nullopt;
  return PeerDiagnostics::Failure{static_cast<int>(entry->first), entry->second};
}

}  // namespace

struct PeerDiagnostics::Connection {
  std::mutex mutex;
  c10::intrusive_ptr<c10d::Store> store;
  std::atomic<int> abandoned{0};  ///< calls; no further ones are made until these return
  std::mutex silent_mutex;
  std::vector<int> silent;

  void note_silent(std::span<const int> asked, std::span<const int> missing) {
    std::lock_guard lock(silent_mutex);
    std::erase_if(silent, [&](int rank) { return std::ranges::count(asked, rank) > 0; });
    silent.insert(silent.end(), missing.begin(), missing.end());
  }

  /// Counts in `abandoned` from when the caller abandons it until its thread ends, in whichever
  /// order these happen.
  class AbandonableCall {
   public:
    explicit AbandonableCall(Connection& connection) : connection_(connection) {}
    void abandon() {
      ++connection_.abandoned;
      if (other_done_.exchange(true)) --connection_.abandoned;
    }
    struct End {
      explicit End(AbandonableCall& pending) : pending(pending) {}
      ~End() {
        if (pending.other_done_.exchange(true)) --pending.connection_.abandoned;
      }
      End(const End&) = delete;
      End& operator=(const End&) = delete;
      AbandonableCall& pending;
    };

   private:
    Connection& connection_;
    std::atomic<bool> other_done_{false};
  };

  /// Runs `call(store)` with a timeout. Returns `fallback` if it failed or timed out: the caller
  /// already has the real error.
  template <typename Result, typename Call>
  static Result run(const std::shared_ptr<Connection>& connection, Result fallback, Call call,
                    std::chrono::seconds limit = kAnswerWithin) noexcept {
    try {
      if (connection->abandoned > 0) return fallback;
      const auto pending = std::make_shared<AbandonableCall>(*connection);
      auto result =
          call_with_timeout(limit, fallback, [connection, pending, call = std::move(call)] {
            const AbandonableCall::End ends(*pending);
            std::lock_guard lock(connection->mutex);
            return call(*connection->store);
          });
      pending->abandon();  // no effect if it has ended
      return result;
    } catch (const std::exception&) {  // out of memory
      return fallback;
    }
  }
};

PeerDiagnostics::PeerDiagnostics(c10::intrusive_ptr<c10d::Store> store, int rank,
                                 std::string store_host)
    : connection_(std::make_shared<Connection>()), rank_(rank), store_host_(std::move(store_host)) {
  connection_->store = std::move(store);
}

void PeerDiagnostics::post_failure(std::string_view text) noexcept {
  const std::string entry = join_text(rank_, " ", text);
  Connection::run(connection_, false, [entry](c10d::Store& store) {
    store.compareSet("failure", {}, bytes_of(entry));
    return true;
  });
}

void PeerDiagnostics::post_failure(c10d::Store& store, int rank, std::string_view text) noexcept {
  try {
    store.compareSet("failure", {}, bytes_of(join_text(rank, " ", text)));
  } catch (const std::exception&) {  // the caller has the real error
  }
}

std::optional<PeerDiagnostics::Failure> PeerDiagnostics::first_failure(c10d::Store& store) {
  return failure_of(text_if_any(store, "failure"));
}

std::optional<PeerDiagnostics::Failure> PeerDiagnostics::first_failure() noexcept {
  return failure_of(Connection::run(connection_, std::string(), [](c10d::Store& store) {
    return text_if_any(store, "failure");
  }));
}

std::vector<RankCall> PeerDiagnostics::exchange_calls(const GroupInfo& group,
                                                      const std::string& channel,
                                                      const RankCall& mine) noexcept {
  const std::string entry = join_text(mine.sequence, " ", post(mine.call, mine.note));
  const auto whom = some_of(static_cast<int>(group.ranks.size()), mine.index);
  auto calls = Connection::run(connection_, std::vector<RankCall>{}, [=](c10d::Store& store) {
    store.set(call_key(channel, mine.index), bytes_of(entry));
    std::vector<RankCall> found;
    for (const int index : whom) {
      const std::string key = call_key(channel, index);
      if (!store.check({key})) continue;
      const auto said = numbered(text_of(store.get(key)));
      if (!said) continue;
      if (auto call = read_post(index, said->first, said->second)) found.push_back(*call);
    }
    return found;
  });
  calls.push_back(mine);
  std::ranges::sort(calls, {}, &RankCall::index);  // so that all ranks name the same two
  return calls;
}

void PeerDiagnostics::give_up(const std::string& channel, uint64_t sequence,
                              std::string_view why) noexcept {
  const std::string key = given_up_key(channel, sequence);
  const std::string entry = join_text(rank_, " ", why);
  Connection::run(connection_, false, [=](c10d::Store& store) {
    store.compareSet(key, {}, bytes_of(entry));
    return true;
  });
}

std::optional<PeerDiagnostics::Failure> PeerDiagnostics::abandoned_by(const std::string& channel,
                                                                      uint64_t sequence) noexcept {
  const std::string key = given_up_key(channel, sequence);
  return failure_of(Connection::run(connection_, std::string(),
                                    [=](c10d::Store& store) { return text_if_any(store, key); }));
}

std::string PeerDiagnostics::store_host_text() const {
  return store_host_.empty() ? "rank 0" : join_text("rank 0 (", store_host_, ")");
}

void PeerDiagnostics::post_host(std::string_view host) noexcept {
  const std::string key = host_key(rank_);
  const std::string entry(host);
  Connection::run(connection_, false, [=](c10d::Store& store) {
    store.set(key, bytes_of(entry));
    return true;
  });
}

std::string PeerDiagnostics::ranks_with_hosts(std::span<const int> ranks) noexcept {
  const std::vector<int> asked(ranks.begin(), ranks.end());
  const auto hosts = Connection::run(connection_, std::vector<std::string>(asked.size()),
                                     [asked](c10d::Store& store) {
                                       std::vector<std::string> found;
                                       for (const int rank : asked)
                                         found.push_back(text_if_any(store, host_key(rank)));
                                       return found;
                                     });
  std::string out = asked.size() > 1 ? "ranks " : "rank ";
  bool after_host = false;
  for (size_t i = 0; i < asked.size(); ++i) {
    out += join_text(i == 0 ? "" : after_host ? ", " : ",", asked[i]);
    after_host = !hosts[i].empty();
    if (after_host) out += join_text(" (", hosts[i], ")");
  }
  return out;
}

void PeerDiagnostics::post_end() noexcept {
  const std::string key = ended_key(rank_);
  Connection::run(connection_, false, [key](c10d::Store& store) {
    store.set(key, bytes_of("1"));
    return true;
  });
}

std::vector<int> PeerDiagnostics::who_ended(std::span<const int> ranks) noexcept {
  std::vector<int> others(ranks.begin(), ranks.end());
  std::erase(others, rank_);
  return Connection::run(connection_, std::vector<int>(), [others](c10d::Store& store) {
    std::vector<int> ended;
    for (const int rank : others) {
      if (store.check({ended_key(rank)})) ended.push_back(rank);
    }
    return ended;
  });
}

void PeerDiagnostics::post_exit(int others, bool hosts_store) noexcept {
  Connection::run(
      connection_, false,
      [=](c10d::Store& store) {
        store.add(kExits, hosts_store ? 0 : 1);
        return !hosts_store ||
               poll_until(kHostStays, [&] { return store.add(kExits, 0) >= others; });
      },
      kAnswerWithin + kHostStays);
}

std::optional<LivenessProbe::ProbeResult> PeerDiagnostics::probe(
    std::span<const int> ranks) noexcept {
  std::vector<int> others(ranks.begin(), ranks.end());
  std::erase(others, rank_);
  const auto call = [others, connection = connection_](c10d::Store& store) {
    auto probed =
        std::make_shared<const LivenessProbe::ProbeResult>(LivenessProbe::call(store, others));
    connection->note_silent(others, probed->missing);
    return probed;
  };
  const auto probed =
      Connection::run(connection_, std::shared_ptr<const LivenessProbe::ProbeResult>(), call,
                      kAnswerWithin + LivenessProbe::kLongest);
  if (probed == nullptr) return std::nullopt;
  return *probed;
}

std::vector<int> PeerDiagnostics::silent() {
  std::lock_guard lock(connection_->silent_mutex);
  return connection_->silent;
}

}  // namespace tessera::comm
