#include "tessera/comm/processes.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <charconv>
#include <csignal>
#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/comm/checked.h"
#include "tessera/comm/cuda_backend.h"
#include "tessera/comm/deadline.h"
#include "tessera/comm/failure.h"
#include "tessera/comm/gloo.h"
#include "tessera/comm/life_sign.h"
#include "tessera/comm/meeting.h"
#include "tessera/comm/network.h"
#include "tessera/comm/noticeboard.h"
#include "tessera/comm/observer_state.h"
#include "tessera/comm/parting.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/comm/world.h"
#include "tessera/comm/world_end.h"

namespace tessera::comm {
namespace {

using c10::intrusive_ptr;
using StorePtr = intrusive_ptr<c10d::Store>;

constexpr auto kFarewell = std::chrono::seconds(10);

StorePtr prefixed(const std::string& prefix, StorePtr store) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
}

bool needs_network(const ProcessWorldOptions& options) {
  return options.size > 1 || !options.host.empty();
}

StorePtr open_store(const ProcessWorldOptions& options) {
  if (options.store) return options.store;
  if (!needs_network(options)) return c10::make_intrusive<c10d::HashStore>();
  require(!options.host.empty() && options.port > 0 && options.port < 65536, "a world of ",
          options.size, " processes needs a host and a port, or a store; got \"", options.host,
          "\" and ", options.port);
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<uint16_t>(options.port);
  tcp.isServer = options.rank == 0 && !options.store_is_hosted;
  tcp.numWorkers = options.size;
  tcp.waitWorkers = false;  // Meeting waits, and knows who is missing
  tcp.timeout = options.timeout;
  const std::string where = join_text(options.host, ":", options.port);
  try {
    return c10::make_intrusive<c10d::TCPStore>(options.host, tcp);
  } catch (const c10::Error& e) {
    if (tcp.isServer) {
      throw InvalidArgument(join_text("rank 0 cannot make the store at ", where,
                                      "; is the port free and the host this machine? ",
                                      e.what_without_backtrace()));
    }
    throw PeerError(join_text("rank ", options.rank, " of ", options.size,
                              ": waited for the store of ",
                              options.store_is_hosted ? "the launcher" : "rank 0", " at ", where,
                              ", which did not answer within ", options.timeout.count(),
                              " ms: ", e.what_without_backtrace()));
  }
}

std::vector<c10::DeviceType> served_devices(const ProcessWorldOptions& options) {
  if (!options.devices.empty()) return options.devices;
  std::vector<c10::DeviceType> devices = {c10::DeviceType::CPU};
  // A rank without a device of its own (more ranks than GPUs) computes on the CPU alone.
  const bool has_device =
      at::globalContext().hasCUDA() && at::detail::getCUDAHooks().getNumGPUs() > options.local_rank;
  if (has_device) devices.push_back(c10::DeviceType::CUDA);
  return devices;
}

class ProcessWorld final : public RankWorld {
 public:
  ProcessWorld(const ProcessWorldOptions& options, const StorePtr& store)
      : RankWorld(Kind::processes, options.rank, options.size, options.name, options.timeout),
        store_(store),
        board_(prefixed(Noticeboard::kPrefix, store)),
        // A store that the program made is rank 0's by convention.
        hosts_store_(options.rank == 0 && !options.store_is_hosted),
        local_rank_(options.local_rank),
        devices_(served_devices(options)) {
    if (options.size == 1) {
      address_ = "127.0.0.1";
      return;
    }
    const auto own_connection = [store] { return store->clone(); };
    auto board = prefixed(Noticeboard::kPrefix, own_connection());
    life_sign_ = std::make_unique<LifeSign>(prefixed(Noticeboard::kPrefix, own_connection()),
                                            board_, options.rank);
    ObserverState& state = *observers().state();
    std::lock_guard lock(state.mutex);
    state.board = std::make_shared<Noticeboard>(std::move(board), options.rank);
    state.check = std::make_shared<CollectiveCheck>(own_connection, options.timeout);
  }

  ~ProcessWorld() override { end(); }

  /// What the destructor does, for a process that ends while others still hold the world.
  void end() {
    if (size() == 1 || std::exchange(ended_, true)) return;
    const bool fails = observers().state()->failed || std::uncaught_exceptions() > 0;
    // Otherwise Gloo's destructor would wait for calls that nobody will answer.
    if (fails) observers().state()->abort_links();
    if (life_sign_->dismissed()) return;  // who hosted the store has left, and the store with it
    const auto parting = std::make_shared<Parting>(
        Parting::Options{store_, board_, std::move(life_sign_), rank(), size(), hosts_store_,
                         std::min<std::chrono::milliseconds>(kFarewell, timeout())});
    const auto farewell = fails ? parting->call_off_farewell() : parting->say_farewell();
    shut_down_groups(farewell);
    if (farewell == Parting::Farewell::none) return;
    parting->leave(observers().state()->board_now()->silent());
  }

  /// Waits for all ranks of the world and learns whether they share a machine.
  void start(const ProcessWorldOptions& options) {
    if (options.size == 1) return;
    const std::string where =
        options.store ? std::string("a given store") : join_text(options.host, ":", options.port);
    const bool one_machine = meet("start", join_text("the start of world ", name(), " at ", where),
                                  everyone(), rank(), timeout())
                                 .attend(machine_identity());
    const bool loopback = one_machine || is_loopback(options.host);
    address_ = loopback ? "127.0.0.1" : address_towards(options.host, options.port);
  }

 protected:
  Backends make_backends(std::span<const int> ranks, int index,
                         const std::string& group_name) override {
    const int group_size = static_cast<int>(ranks.size());
    if (group_size > 1) {
      meet("group/" + group_name, join_text("making group ", group_name), ranks, index, timeout())
          .attend("");
    }
    const auto group_store = [&](const char* kind) {
      return prefixed(join_text("group/", group_name, "/", kind), store_);
    };
    intrusive_ptr<c10d::Backend> gloo;
    Backends backends;
    for (const c10::DeviceType device : devices_) {
      if (device == c10::DeviceType::CUDA && has_nccl()) {
        backends.emplace_back(device, make_nccl_backend({group_store("nccl"), index, group_size,
                                                         local_rank_, timeout(), group_name}));
        made_.emplace_back(device, backends.back().second);
        continue;
      }
      if (!gloo) {
        gloo = connect_gloo(group_store("gloo"), ranks, index, group_name);
        made_.emplace_back(c10::DeviceType::CPU, gloo);
      }
      backends.emplace_back(device, gloo);
    }
    return backends;
  }

 private:
  Meeting meet(std::string meeting, std::string purpose, std::span<const int> ranks, int index,
               std::chrono::milliseconds patience) {
    return {*store_, std::move(meeting), std::move(purpose), ranks, index, patience, *board_};
  }

  std::vector<int>& everyone() {
    if (everyone_.empty()) {
      everyone_.resize(static_cast<size_t>(size()));
      std::iota(everyone_.begin(), everyone_.end(), 0);
    }
    return everyone_;
  }

  intrusive_ptr<c10d::Backend> connect_gloo(StorePtr store, std::span<const int> ranks, int index,
                                            const std::string& group_name) {
    try {
      return make_gloo_backend(
          {std::move(store), index, static_cast<int>(ranks.size()), timeout(), address_});
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      observers().state()->failed = true;
      throw PeerError(join_text("rank ", rank(), ": connecting group ", group_name, " (ranks ",
                                list_text(ranks), ") from address ",
                                address_.empty() ? "of this machine's name" : address_,
                                " failed: ", e.what()));
    }
  }

  /// Before this rank counts as gone, and the store may go: NCCL's groups read it once a second
  /// from a thread, which warns at length when it is gone. What Gloo's have under way nobody waits
  /// for once all ranks came to the end; before that a peer may still count on it.
  void shut_down_groups(Parting::Farewell farewell) noexcept {
    for (auto& [device, weak] : made_) {
      if (device != c10::DeviceType::CUDA && farewell != Parting::Farewell::all_came) continue;
      try {
        if (const auto backend = weak.lock()) backend->shutdown();
      } catch (const std::exception&) {  // a peer is gone: whoever waited for it has heard of it
      }
    }
  }

  StorePtr store_;
  StorePtr board_;  // the noticeboard, over the same connection
  bool hosts_store_;
  int local_rank_;
  std::vector<c10::DeviceType> devices_;
  std::string address_;
  std::vector<int> everyone_;
  std::unique_ptr<LifeSign> life_sign_;
  bool ended_ = false;
  /// Behind the groups that this world made, not those that it adopted. By device: CPU is Gloo.
  std::vector<std::pair<c10::DeviceType, c10::weak_intrusive_ptr<c10d::Backend>>> made_;
};

std::chrono::milliseconds timeout_from(const Environment& environment) {
  const auto text = environment("TESSERA_TIMEOUT_S");
  if (!text || text->empty()) return kDefaultTimeout;
  double seconds = 0;
  const char* end = text->data() + text->size();
  const auto [at, error] = std::from_chars(text->data(), end, seconds);
  require(error == std::errc{} && at == end && seconds > 0, "TESSERA_TIMEOUT_S is \"", *text,
          "\", expected a number of seconds above 0");
  return timeout_of(seconds);
}

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
  auto world = make_process_world(std::move(options));
  const auto check = environment("TESSERA_CHECK_COLLECTIVES");
  if (check && !check->empty() && *check != "0") set_checked(*world, true);
  return world;
}

/// A program that ends without close_process_world() ends its world all the same, or the others
/// would lose the store while they still wait on it.
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
    if (ending != nullptr) announce_world_end(*ending);
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

/// A write to a peer that has died raises SIGPIPE, whose default is to end the process before any
/// error can be thrown. A program that handles the signal itself is left alone.
void survive_broken_pipes() {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
}

}  // namespace

std::shared_ptr<RankWorld> make_process_world(ProcessWorldOptions options) {
  if (options.size > 1) survive_broken_pipes();
  require(options.size > 0 && options.rank >= 0 && options.rank < options.size, "rank ",
          options.rank, " of a world of ", options.size);
  require(options.timeout.count() > 0, "a world needs a timeout above 0");
  const auto store =
      prefixed(join_text("tessera/", options.attempt, "/", options.name), open_store(options));
  auto world = std::make_shared<ProcessWorld>(options, store);
  try {
    world->start(options);
  } catch (...) {
    world->observers().state()->failed = true;  // no farewell to those who never came
    throw;
  }
  return world;
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
