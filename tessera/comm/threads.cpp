#include "tessera/comm/threads.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/AutogradState.h>

#include <atomic>
#include <optional>
#include <thread>

#include "tessera/base/errors.h"
#include "tessera/comm/rank_generator.h"
#include "tessera/comm/world_end.h"
#include "tessera/threads/thread_backend.h"
#include "tessera/threads/thread_failure.h"
#include "tessera/threads/thread_hub.h"

namespace tessera::comm {
namespace {

class ThreadRankWorld final : public RankWorld {
 public:
  ThreadRankWorld(std::shared_ptr<ThreadHub> hub, int rank, std::chrono::milliseconds timeout)
      : RankWorld(Kind::threads, rank, hub->size(), join_text(hub->name(), ".r", rank), timeout),
        hub_(std::move(hub)) {}

 private:
  Backends make_backends(std::span<const int> ranks, int index,
                         const std::string& /*group_name*/) override {
    auto backend = c10::make_intrusive<ThreadBackend>(hub_, ranks, index, timeout());
    Backends backends;
    for (const auto device : all_device_types()) backends.emplace_back(device, backend);
    return backends;
  }

  std::shared_ptr<ThreadHub> hub_;
};

std::string next_name() {
  static std::atomic<int> count{0};
  return join_text("tessera.t", count++);
}

}  // namespace

struct ThreadRanks::State {
  std::shared_ptr<ThreadHub> hub;
  std::vector<std::shared_ptr<RankWorld>> worlds;
  std::vector<std::unique_ptr<RankGenerators>> generators;
  std::optional<at::ThreadLocalState> creator;  // nullopt: threads keep their own
};

// Members are constructed in this order and destroyed in reverse.
struct EnterRank::Guards {
  /// Runs autograd on the calling thread. Two ranks that share the engine's one thread per device
  /// would deadlock in a backward that communicates.
  class RankAutograd {
   public:
    RankAutograd() : previous_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
      c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    }
    ~RankAutograd() { c10::AutogradState::get_tls_state().set_multithreading_enabled(previous_); }
    RankAutograd(const RankAutograd&) = delete;
    RankAutograd& operator=(const RankAutograd&) = delete;

   private:
    bool previous_;
  };

  Guards(std::shared_ptr<ThreadRanks> of, ThreadRanks::State& state, size_t rank)
      : ranks(std::move(of)),
        inherited(state.creator ? std::make_unique<at::ThreadLocalStateGuard>(*state.creator)
                                : nullptr),
        generators(*state.generators[rank]),
        world(state.worlds[rank]),
        presence(*state.hub, static_cast<int>(rank)) {}

  std::shared_ptr<ThreadRanks> ranks;  // keeps the world alive while a thread is in it
  std::unique_ptr<at::ThreadLocalStateGuard> inherited;
  RankAutograd autograd;
  UseGenerators generators;
  WorldGuard world;
  ThreadHub::Presence presence;
};

ThreadRanks::ThreadRanks(std::unique_ptr<State> state) : state_(std::move(state)) {}

ThreadRanks::~ThreadRanks() {
  for (const auto& world : state_->worlds) announce_world_end(*world);
}

std::shared_ptr<ThreadRanks> ThreadRanks::create(int n, const RunRanksOptions& options) {
  require(n >= 1, "run_ranks: ", n, " ranks; at least one is needed");
  auto state = std::make_unique<State>();
  if (options.inherit_state) state->creator.emplace();
  state->hub = std::make_shared<ThreadHub>(n, next_name(), options.detect_deadlock);
  const uint64_t seed = process_seed();
  for (int rank = 0; rank < n; ++rank) {
    state->worlds.push_back(std::make_shared<ThreadRankWorld>(state->hub, rank, options.timeout));
    state->generators.push_back(std::make_unique<RankGenerators>(seed));
  }
  return std::shared_ptr<ThreadRanks>(new ThreadRanks(std::move(state)));
}

int ThreadRanks::size() const { return state_->hub->size(); }

const std::shared_ptr<RankWorld>& ThreadRanks::world(int rank) const {
  require(rank >= 0 && rank < size(), "rank ", rank, " of ", size(), " thread ranks");
  return state_->worlds[static_cast<size_t>(rank)];
}

void ThreadRanks::fail(int rank, std::exception_ptr error) {
  state_->hub->fail(rank, std::move(error));
}

void ThreadRanks::rethrow_failure() const {
  const auto first = state_->hub->first_failure();
  if (!first) return;
  Failure failure = Failure::of(first->error);
  failure.message = join_text("rank ", first->rank, ": ", failure.message);
  failure.raise_with(first->error);
}

EnterRank::EnterRank(ThreadRanks& ranks, int rank) {
  ranks.world(rank);  // checks the number
  guards_ =
      std::make_unique<Guards>(ranks.shared_from_this(), *ranks.state_, static_cast<size_t>(rank));
}

EnterRank::~EnterRank() = default;

namespace {

void run_rank(ThreadRanks& ranks, int rank, const std::function<void(int)>& fn) {
  try {
    EnterRank here(ranks, rank);
    try {
      fn(rank);
    } catch (...) {  // before the rank ends: its failure is the cause, not its end
      ranks.fail(rank, std::current_exception());
    }
  } catch (...) {
    ranks.fail(rank, std::current_exception());
  }
}

}  // namespace

void run_ranks(int n, const std::function<void(int rank)>& fn, const RunRanksOptions& options) {
  const auto ranks = ThreadRanks::create(n, options);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(n));
  for (int rank = 0; rank < n; ++rank) {
    try {
      threads.emplace_back([&ranks, &fn, rank] { run_rank(*ranks, rank, fn); });
    } catch (...) {  // no thread left: the running ones must not wait for this one
      ranks->fail(rank, std::current_exception());
      break;
    }
  }
  for (auto& thread : threads) thread.join();
  ranks->rethrow_failure();
}

}  // namespace tessera::comm
