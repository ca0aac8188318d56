#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

/// How a world of processes gets its store.
namespace tessera::comm {

struct ProcessWorldOptions;

/// The store that the options give or describe, connected within their timeout: PeerError if it
/// does not answer, InvalidArgument if rank 0 cannot listen there. One rank without a host gets a
/// store of its own, in memory.
///
/// Rank 0's store listens where the job is: at the address that `host` names, if it is one of this
/// machine's and the only one; a job on 127.0.0.1 cannot be reached from outside. Where the name
/// stands for several addresses, for another machine's (a proxy's), or for a loopback address that
/// only this machine sees, it listens everywhere.
c10::intrusive_ptr<c10d::Store> open_store(const ProcessWorldOptions& options);

}  // namespace tessera::comm
