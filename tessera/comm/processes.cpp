#include "tessera/comm/processes.h"

#include <csignal>
#include <thread>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/collective/deadline.h"
#include "tessera/comm/environment_settings.h"
#include "tessera/comm/failure.h"
#include "tessera/comm/job_check.h"
#include "tessera/comm/open_store.h"
#include "tessera/comm/process_world.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/comm/world_end.h"
#include "tessera/liveness/bounded_store.h"
#include "tessera/liveness/peer_diagnostics.h"
#include "tessera/liveness/signed_store.h"
#include "tessera/liveness/store_text.h"
#include "tessera/observe/checked.h"
#include "tessera/observe/observer_state.h"
#include "tessera/transport/descriptors.h"

namespace tessera::comm {
namespace {

using c10::intrusive_ptr;
using StorePtr = intrusive_ptr<c10d::Store>;

/// How long a rank 0 that cannot start stays alive, so that the others can read why.
constexpr auto kHostStays = std::chrono::milliseconds(1500);

std::shared_ptr<RankWorld> world_from(const Environment& environment) {
  const Rendezvous found = read_rendezvous(environment);
  ProcessWorldOptions options;
  options.rank = found.rank;
  options.size = found.size;
  options.local_rank = found.local_rank;
  options.host = found.host;
  options.port = found.port;
  options.store_is_hosted = found.store_is_hosted;
  options.timeout = timeout_from(environment);
  options.attempt = found.attempt;
  options.job = found.job;
  options.secret = found.secret;
  auto world = make_process_world(std::move(options));
  if (checks_collectives(environment)) set_checked(*world, true);
  return world;
}

/// A program that exits without close_process_world() still shuts its world down; otherwise the
/// others would lose the store while they wait on it.
struct OwnWorld {
  std::mutex mutex;
  std::shared_ptr<RankWorld> world;
  ~OwnWorld() { end(); }

  /// Other threads do not find a world that is ending.
  std::shared_ptr<RankWorld> close() {
    std::shared_ptr<RankWorld> ending;
    {
      std::lock_guard lock(mutex);
      ending.swap(world);
    }
    if (ending == nullptr) return nullptr;
    if (!ending->observers().state()->is_ours()) {
      // In a process forked from a rank: it has none of the threads that destructors join.
      new auto(std::move(ending));
      return nullptr;
    }
    announce_world_end(*ending);
    return ending;
  }

  void end() {
    const auto ending = close();
    if (auto* processes = dynamic_cast<ProcessWorld*>(ending.get())) processes->end();
  }
};

OwnWorld& own_world() {
  static OwnWorld own;
  return own;
}

/// Runs `calls()`, all to the store.
template <typename Calls>
auto or_peer_error(const ProcessWorldOptions& options, Calls calls) {
  try {
    return calls();
  } catch (const c10::Error& e) {
    throw PeerError(join_text("rank ", options.rank, ": the start of world ", options.name, " at ",
                              place_of(options),
                              " failed, the store does not answer: ", e.what_without_backtrace()));
  }
}

/// Runs before entries are signed: a foreign process has another secret.
void check_job_membership(const ProcessWorldOptions& options, const StorePtr& store,
                          const std::string& prefix,
                          const std::function<void(const std::string&)>& post_failure) {
  const auto limit = deadline_after(options.timeout) + kFinalMessages;
  const auto keys =
      prefixed(prefix, c10::make_intrusive<BoundedStore>(store, options.timeout)->until(limit));
  or_peer_error(options, [&] {
    check_job(*keys, {options.rank, options.size, options.job, place_of(options), options.timeout},
              post_failure);
  });
}

/// Worlds that follow each other on one store have numbers, and keys of their own. `store` holds
/// the keys that they share. All ranks of a world read the same number: none starts another world
/// before it has counted this one.
constexpr const char* kWorlds = "worlds";

std::string read_world_number(c10d::Store& store) {
  return text_of(store.compareSet(kWorlds, {}, bytes_of("0")));
}

/// For every rank, once all have read the number. The first call counts.
void count_world(c10d::Store& store, const std::string& number) {
  store.compareSet(kWorlds, bytes_of(number), bytes_of(std::to_string(std::stoll(number) + 1)));
}

/// A write to a dead peer raises SIGPIPE, which by default ends the process before any error can be
/// thrown. A program's own handler is left in place.
void ignore_sigpipe() {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
}

}  // namespace

std::shared_ptr<RankWorld> make_process_world(ProcessWorldOptions options) {
  if (options.size > 1) ignore_sigpipe();
  require(options.size > 0 && options.rank >= 0 && options.rank < options.size, "rank ",
          options.rank, " of a world of ", options.size);
  require(options.timeout.count() > 0, "a world needs a timeout above 0");
  const std::string shared_prefix = join_text("tessera/", options.attempt, "/", options.name);
  const StorePtr unsigned_store = open_store(options);
  const auto store = c10::make_intrusive<BoundedStore>(
      options.secret.empty()
          ? unsigned_store
          : StorePtr(c10::make_intrusive<SignedStore>(unsigned_store, options.secret)),
      options.timeout);
  const auto shared_keys = [&](std::chrono::milliseconds timeout) {
    return prefixed(shared_prefix, store->until(deadline_after(timeout)));
  };
  std::string number = options.size == 1 ? "0" : "";
  const auto prefix_within = [&](std::chrono::milliseconds timeout) {
    if (number.empty()) number = read_world_number(*shared_keys(timeout));
    return join_text(shared_prefix, "/", number);
  };
  const auto post_failure = [&](const std::string& why) {
    const std::string prefix = prefix_within(kFinalMessages);
    const auto soon = store->until(deadline_after(kFinalMessages));
    const auto board = prefixed(PeerDiagnostics::kPrefix, prefixed(prefix, soon));
    PeerDiagnostics::post_failure(*board, options.rank, why);
  };
  if (options.size > 1) check_job_membership(options, unsigned_store, shared_prefix, post_failure);
  const std::string prefix = or_peer_error(options, [&] { return prefix_within(options.timeout); });
  std::shared_ptr<ProcessWorld> world;
  try {
    world = std::make_shared<ProcessWorld>(options, store, prefix);
    world->start(options);
    if (options.size > 1) {
      or_peer_error(options, [&] { count_world(*shared_keys(options.timeout), number); });
    }
    return world;
  } catch (const PeerError&) {
    if (world) world->observers().state()->failed = true;  // no barrier with absent ranks
    throw;
  } catch (const std::exception& e) {
    const std::string why = with_descriptor_limit(text_without_backtrace(e));
    post_failure(why);
    if (world) world->observers().state()->failed = true;
    // The store ends with this call, and the others poll for failures twice a second.
    if (!world && options.rank == 0) std::this_thread::sleep_for(kHostStays);
    throw Error(join_text("rank ", options.rank, " cannot start: ", why));
  }
}

std::shared_ptr<RankWorld> process_world() {
  OwnWorld& own = own_world();
  std::lock_guard lock(own.mutex);
  if (!own.world) {
    own.world = world_from(process_environment());
    if (own.world->size() > 1) report_endings();
  }
  return own.world;
}

void set_process_world(std::shared_ptr<RankWorld> world) {
  OwnWorld& own = own_world();
  std::lock_guard lock(own.mutex);
  require(!own.world || own.world == world, "this process is already rank ",
          own.world ? own.world->rank() : 0, " of world ", own.world ? own.world->name() : "",
          "; close_process_world() first");
  own.world = std::move(world);
  if (own.world && own.world->size() > 1) report_endings();
}

std::shared_ptr<RankWorld> process_world_if_any() {
  OwnWorld& own = own_world();
  const std::unique_lock lock(own.mutex, std::try_to_lock);
  return lock ? own.world : nullptr;
}

void close_process_world() { own_world().close(); }

void end_process_world() { own_world().end(); }

}  // namespace tessera::comm
