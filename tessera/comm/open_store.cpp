#include "tessera/comm/open_store.h"

#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/base/errors.h"
#include "tessera/comm/processes.h"
#include "tessera/liveness/bounded_store.h"
#include "tessera/transport/descriptors.h"
#include "tessera/transport/network.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kProbe(1000);

/// File descriptors for a rank's own connections, and those that rank 0 needs per rank.
constexpr int kOwnConnections = 10;
constexpr int kServed = 3;

[[noreturn]] void cannot_host(const std::string& where, std::string_view why) {
  throw InvalidArgument(join_text(
      "rank 0 cannot make the store at ", where,
      "; is the host this machine and the port free? (Two jobs with one MASTER_PORT, or RANK=0 "
      "given to two processes, look like this too.) ",
      with_descriptor_limit(why)));
}

[[noreturn]] void no_answer(const ProcessWorldOptions& options, const std::string& where,
                            std::string_view why) {
  const bool held = answers_at(options.host, options.port, std::min(kProbe, options.timeout));
  throw PeerError(join_text(
      "rank ", options.rank, " of ", options.size, ": waited for the store of ",
      options.store_is_hosted ? "the launcher" : "rank 0", " at ", where,
      ", which did not answer within ", options.timeout.count(), " ms",
      held ? "; the port is open, so its process is stopped, or is not rank 0 of a job" : "",
      why.empty() ? "" : ": ", with_descriptor_limit(why)));
}

/// A connection of our own to the store that the program gave: its own one may be busy, and ends,
/// as a server does, with the program's process group.
BoundedStore::StorePtr connection_to_given(const ProcessWorldOptions& options) {
  const auto clone = open_within(options.timeout, [store = options.store] {
    try {
      return store->clone();
    } catch (const std::exception&) {  // a store of the program's own class may have no clones
      return store;
    }
  });
  if (clone) return clone;
  throw PeerError(join_text("rank ", options.rank, " of ", options.size,
                            ": the store that the program gave (of torch.distributed, for example) "
                            "did not answer within ",
                            options.timeout.count(), " ms; is the process that hosts it stopped?"));
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const ProcessWorldOptions& options) {
  if (options.store) return connection_to_given(options);
  if (options.size == 1 && options.host.empty()) return c10::make_intrusive<c10d::HashStore>();
  require(!options.host.empty() && options.port > 0 && options.port < 65536, "a world of ",
          options.size, " processes needs a host and a port, or a store; got \"", options.host,
          "\" and ", options.port);
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<uint16_t>(options.port);
  tcp.isServer = options.rank == 0 && !options.store_is_hosted;
  tcp.numWorkers = options.size;
  tcp.waitWorkers = false;  // StoreBarrier waits, and reports missing ranks
  tcp.multiTenant = true;   // torch.distributed may use the same server of this process
  tcp.timeout = options.timeout;
  const std::string where = join_text(options.host, ":", options.port);
  require_descriptors(kOwnConnections + (tcp.isServer ? kServed * options.size : 0),
                      "the store of a world of processes");
  const auto connect = [host = options.host, tcp]() mutable -> BoundedStore::StorePtr {
    if (tcp.isServer) tcp.masterListenFd = bind_where_host_is(host, tcp.port);
    return c10::make_intrusive<c10d::TCPStore>(host, tcp);
  };
  try {
    if (auto store = open_within(options.timeout, connect)) return store;
  } catch (const c10::Error& e) {
    if (tcp.isServer) cannot_host(where, e.what_without_backtrace());
    no_answer(options, where, e.what_without_backtrace());
  } catch (const std::system_error& e) {
    cannot_host(where, e.what());
  }
  no_answer(options, where, "");
}

}  // namespace tessera::comm
