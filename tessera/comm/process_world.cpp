#include "tessera/comm/process_world.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/base/errors.h"
#include "tessera/base/iota_vector.h"
#include "tessera/collective/deadline.h"
#include "tessera/comm/failure.h"
#include "tessera/liveness/peer_diagnostics.h"
#include "tessera/liveness/store_barrier.h"
#include "tessera/observe/checked.h"
#include "tessera/observe/observer_state.h"
#include "tessera/transport/cuda_backend.h"
#include "tessera/transport/descriptors.h"
#include "tessera/transport/gloo.h"
#include "tessera/transport/network.h"

namespace tessera::comm {
namespace {

constexpr auto kShutdownBarrier = std::chrono::seconds(10);

std::vector<c10::DeviceType> served_devices(const ProcessWorldOptions& options) {
  if (!options.devices.empty()) return options.devices;
  std::vector<c10::DeviceType> devices = {c10::DeviceType::CPU};
  // A rank without its own device (more ranks than GPUs) computes on the CPU only.
  const bool has_device =
      at::globalContext().hasCUDA() && at::detail::getCUDAHooks().getNumGPUs() > options.local_rank;
  if (has_device) devices.push_back(c10::DeviceType::CUDA);
  return devices;
}

/// The address of the store, also of one created by the program; this machine's name if unknown.
std::pair<std::string, int> host_of(const ProcessWorldOptions& options) {
  if (!options.host.empty()) return {options.host, options.port};
  auto store = options.store;
  if (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get())) {
    store = prefixed->getUnderlyingNonPrefixStore();
  }
  if (const auto* tcp = dynamic_cast<c10d::TCPStore*>(store.get())) {
    return {tcp->getHost(), tcp->getPort()};
  }
  return {host_name(), 0};
}

}  // namespace

std::string text_without_backtrace(const std::exception& e) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&e);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : e.what();
}

std::string place_of(const ProcessWorldOptions& options) {
  return options.store ? std::string("a given store") : join_text(options.host, ":", options.port);
}

c10::intrusive_ptr<c10d::Store> prefixed(const std::string& prefix,
                                         c10::intrusive_ptr<c10d::Store> store) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
}

ProcessWorld::ProcessWorld(const ProcessWorldOptions& options, const BoundedPtr& store,
                           const std::string& prefix)
    : RankWorld(Kind::processes, options.rank, options.size, options.name, options.timeout),
      owner_(getpid()),
      given_store_(options.store),
      connection_(store),
      prefix_(prefix),
      store_(prefixed(prefix, store)),
      board_(prefixed(PeerDiagnostics::kPrefix, store_)),
      // A store that the program created is hosted by rank 0, by convention.
      hosts_store_(options.rank == 0 && !options.store_is_hosted),
      local_rank_(options.local_rank),
      devices_(served_devices(options)),
      secret_(options.secret) {
  if (options.size == 1) {
    address_ = "127.0.0.1";
    return;
  }
  const auto soon = store->until(deadline_after(options.timeout));
  const auto own_connection = [store, prefix] { return prefixed(prefix, store->clone()); };
  auto board = prefixed(PeerDiagnostics::kPrefix, prefixed(prefix, soon->clone()));
  probe_ = std::make_unique<LivenessProbe>(
      prefixed(PeerDiagnostics::kPrefix, prefixed(prefix, soon->unbounded_clone())), board_,
      options.rank);
  ObserverState& state = *observers().state();
  state.hosts_store = hosts_store_;
  std::lock_guard lock(state.mutex);
  const auto [host, port] = host_of(options);
  const bool known = port != 0 && !is_loopback(host);
  state.board = std::make_shared<PeerDiagnostics>(std::move(board), options.rank,
                                                  known ? host : std::string());
  state.check = std::make_shared<CollectiveCheck>(own_connection, options.timeout);
}

void ProcessWorld::end() {
  if (getpid() != owner_ || std::exchange(ended_, true)) return;
  if (size() > 1) shut_down();
  // Meshes may keep this world; a store that is hosted here must not keep its port.
  connection_->close();
  given_store_.reset();
}

void ProcessWorld::shut_down() {
  const bool fails = observers().state()->failed || std::uncaught_exceptions() > 0;
  // Otherwise Gloo's destructor would block on calls that no peer answers.
  if (fails) observers().state()->abort_links();
  if (probe_->dismissed()) return;  // the process that hosted the store has left
  if (!fails) end_sending();
  const auto shutdown = std::make_shared<WorldShutdown>(
      WorldShutdown::Options{store_, board_, std::move(probe_), rank(), size(), hosts_store_,
                             std::min<std::chrono::milliseconds>(kShutdownBarrier, timeout())});
  const auto result = fails ? shutdown->cancel_barrier() : shutdown->arrive_and_wait();
  shut_down_groups(result);
  if (result == WorldShutdown::BarrierResult::none) return;
  shutdown->leave(observers().state()->board_now()->silent());
}

void ProcessWorld::start(const ProcessWorldOptions& options) {
  if (options.size == 1) return;
  const auto everyone = iota_vector<int>(size());
  const bool one_machine =
      wait_at_barrier("start", join_text("the start of world ", name(), " at ", place_of(options)),
                      everyone, rank(), machine_identity());
  if (!one_machine) observers().state()->board_now()->post_host(host_name());
  const auto [host, port] = host_of(options);
  const bool loopback = one_machine || is_loopback(host);
  address_ = loopback ? "127.0.0.1" : address_towards(host, port);
}

Backends ProcessWorld::make_backends(std::span<const int> ranks, int index,
                                     const std::string& group_name) {
  const int group_size = static_cast<int>(ranks.size());
  require_descriptors_for(group_size, group_name);
  if (group_size > 1) {
    wait_at_barrier("group/" + group_name, join_text("making group ", group_name), ranks, index,
                    "");
  }
  const auto group_store = [&](const char* kind) {
    return prefixed(join_text("group/", group_name, "/", kind), store_);
  };
  BackendPtr gloo;
  Backends backends;
  for (const c10::DeviceType device : devices_) {
    if (device == c10::DeviceType::CUDA && has_nccl()) {
      backends.emplace_back(device, make_nccl_backend({group_store("nccl"), index, group_size,
                                                       local_rank_, timeout(), group_name}));
      keep_track(device, backends.back().second);
      continue;
    }
    if (!gloo) {
      gloo = connect_gloo(group_store("gloo"), ranks, index, group_name);
      keep_track(c10::DeviceType::CPU, gloo);
    }
    backends.emplace_back(device, gloo);
  }
  return backends;
}

/// Whether all ranks contributed the same word; throws on timeout.
bool ProcessWorld::wait_at_barrier(std::string barrier, std::string purpose,
                                   std::span<const int> ranks, int index, const std::string& word) {
  const auto store =
      prefixed(prefix_, connection_->until(deadline_after(timeout()) + kFinalMessages));
  const auto board = prefixed(PeerDiagnostics::kPrefix, store);
  const std::string store_host = observers().state()->board_now()->store_host_text();
  return StoreBarrier{*store, std::move(barrier), std::move(purpose), ranks, index, timeout(),
                      *board, store_host}
      .arrive_and_wait(word);
}

ProcessWorld::BackendPtr ProcessWorld::connect_gloo(StorePtr store, std::span<const int> ranks,
                                                    int index, const std::string& group_name) {
  GlooOptions options{std::move(store), index, static_cast<int>(ranks.size()), timeout(), address_};
  options.secret = secret_;
  options.look_around = [&] { look_for_failure(group_name); };
  try {
    return make_gloo_backend(options);
  } catch (const NotSupported& e) {
    report_failure(*this, e.what());
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    const std::string why = with_descriptor_limit(text_without_backtrace(e));
    if (is_descriptor_limit(e.what())) report_failure(*this, why);
    observers().state()->failed = true;
    throw PeerError(join_text("rank ", rank(), ": connecting group ", group_name, " (ranks ",
                              list_text(ranks), ") from address ",
                              address_.empty() ? "of this machine's name" : address_,
                              " failed: ", why, who_is_gone(ranks)));
  }
}

/// The ranks that ended or failed, to append to a connection error, which itself names an index or
/// a port. Empty if there are none.
std::string ProcessWorld::who_is_gone(std::span<const int> ranks) {
  const auto board = observers().state()->board_now();
  const auto failure = board->first_failure();
  if (failure && failure->rank != rank()) {
    return join_text("; rank ", failure->rank, " failed first: ", failure->text);
  }
  const auto probed = board->probe(ranks);
  if (!probed) {
    return join_text("; the store does not answer either, as if ", board->store_host_text(),
                     ", which hosts it, is gone");
  }
  std::string out;
  if (!probed->missing.empty()) {
    out += join_text("; no sign of life from ", board->ranks_with_hosts(probed->missing));
  }
  if (!probed->left.empty()) {
    out += join_text("; ", board->ranks_with_hosts(probed->left), " left the world");
  }
  return out;
}

/// Each peer takes one for our connection and one for Gloo's.
void ProcessWorld::require_descriptors_for(int group_size, const std::string& group_name) {
  try {
    require_descriptors(2 * group_size + 8, join_text("group ", group_name));
  } catch (const NotSupported& e) {
    report_failure(*this, e.what());
    throw;
  }
}

void ProcessWorld::look_for_failure(const std::string& group_name) {
  const auto failure = observers().state()->board_now()->first_failure();
  if (!failure || failure->rank == rank()) return;
  observers().state()->failed = true;
  throw PeerError(join_text("rank ", rank(), ": connecting group ", group_name, " failed; rank ",
                            failure->rank, " failed first: ", failure->text));
}

void ProcessWorld::keep_track(c10::DeviceType device, const BackendPtr& backend) {
  std::lock_guard lock(made_mutex_);
  made_.emplace_back(device, WeakBackend(backend));
}

std::vector<std::pair<c10::DeviceType, ProcessWorld::WeakBackend>> ProcessWorld::made() {
  std::lock_guard lock(made_mutex_);
  return made_;
}

/// Peers that still wait for a message from this rank need not wait until its connections close.
void ProcessWorld::end_sending() noexcept {
  observers().state()->board_now()->post_end();
  for (auto& [device, weak] : made()) {
    const auto backend = weak.lock();
    if (auto* links = dynamic_cast<EndsSending*>(backend.get())) links->end_sending();
  }
}

/// Runs before this rank counts as gone and the store may end: NCCL's groups poll the store every
/// second from a thread that logs long warnings when it is gone. Once all ranks have arrived at the
/// end, pending Gloo calls are not needed; before that a peer may still depend on them.
void ProcessWorld::shut_down_groups(WorldShutdown::BarrierResult result) noexcept {
  for (auto& [device, weak] : made()) {
    if (device != c10::DeviceType::CUDA && result != WorldShutdown::BarrierResult::all_came)
      continue;
    try {
      if (const auto backend = weak.lock()) backend->shutdown();
    } catch (const std::exception&) {  // a peer is gone: waiting calls have the error
    }
  }
}

}  // namespace tessera::comm
