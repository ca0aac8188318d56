#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

/// Creates or connects the store of a world of processes.
namespace tessera::comm {

struct ProcessWorldOptions;

/// The store that the options give or describe, connected within their timeout. Throws PeerError if
/// it does not respond, InvalidArgument if rank 0 cannot listen there. A single rank without a host
/// gets a private in-memory store.
///
/// Rank 0's store listens on the address that `host` resolves to, if that is a single address of
/// this machine; a job on 127.0.0.1 cannot be reached from outside. If the name resolves to several
/// addresses, to another machine's (a proxy's), or to a loopback address that only this machine
/// sees, it listens on all interfaces.
c10::intrusive_ptr<c10d::Store> open_store(const ProcessWorldOptions& options);

}  // namespace tessera::comm
