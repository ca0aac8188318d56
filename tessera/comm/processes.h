#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "tessera/base/api.h"

/// Ranks as processes: Gloo for CPU tensors; NCCL for CUDA tensors if this build and machine have
/// it (otherwise Gloo serves them too).
///
///   auto world = comm::process_world();      // from torchrun, Slurm, MPI or plain variables
///   auto mesh = comm::init_device_mesh("dp=2,tp=4", world);
///
/// How the environment is read: rendezvous.h. Variables of this file:
///   TESSERA_TIMEOUT_S            seconds until an absent peer is an error; default 600
///   TESSERA_CHECK_COLLECTIVES=1  checked mode from the start (observe/checked.h)
///   TESSERA_JOB_SECRET           a random text shared by the ranks of one job; tessera launch
///                                generates one. What it protects: liveness/signed_store.h,
///                                transport/sockets.h
///   GLOO_SOCKET_IFNAME           network interfaces for Gloo, separated by commas
///
/// A world of several ranks ignores SIGPIPE, unless the program handles it: the death of a peer
/// must raise an exception here, not end this process.
///
/// Shutdown: a world destroyed after a run without errors first waits for all ranks, at most its
/// timeout or ten seconds, so that no rank loses the store or a connection that it still needs.
/// After a failure it closes its connections immediately, which notifies the peers.
namespace tessera::comm {

class RankWorld;

inline constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::seconds(600);

struct TESSERA_API ProcessWorldOptions {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< index of this rank's CUDA device

  /// Where rank 0 creates the store and the others connect; or an existing store.
  std::string host{};
  int port = 0;
  c10::intrusive_ptr<c10d::Store> store{};
  /// The store at host:port belongs to another process (torchrun's agent): all ranks are clients.
  bool store_is_hosted = false;

  /// The world's name in groups and messages; separates two worlds that share one store.
  std::string name = "procs";
  std::string attempt{};  ///< likewise for a restart on the same store
  /// An identity that all ranks of the job share and no other job has (rendezvous.h), compared at
  /// rendezvous. "": unknown.
  std::string job{};
  /// Known only to the ranks of this job: signs what they write to the store and authenticates
  /// their connections (liveness/signed_store.h, transport/sockets.h). "": none; any process that
  /// reaches the ports is accepted.
  std::string secret{};
  std::chrono::milliseconds timeout = kDefaultTimeout;
  /// The device types it serves; empty: CPU, and CUDA if this machine has device `local_rank`.
  std::vector<c10::DeviceType> devices{};
};

/// Rendezvous with the other ranks; throws PeerError naming those that did not arrive in time.
TESSERA_API std::shared_ptr<RankWorld> make_process_world(ProcessWorldOptions options);

/// This process's world, created from the environment at the first call and kept until process exit
/// or close_process_world. One rank, without a network, if the environment names none.
TESSERA_API std::shared_ptr<RankWorld> process_world();

/// Sets the result of process_world(), for programs whose ranks are already connected (Python's
/// torch.distributed): a world over their store. Throws if there is another one.
TESSERA_API void set_process_world(std::shared_ptr<RankWorld> world);

/// The same if it exists and is not being created; never blocks.
TESSERA_API std::shared_ptr<RankWorld> process_world_if_any();

/// Releases process_world() before process exit. Programs with CUDA tensors should call it at the
/// end of main, because the CUDA runtime may be gone during static destruction. Another world may
/// follow. If rank 0 hosts the stores (no launcher does), it needs another port: ranks might find
/// the store of the first world while that is closing.
TESSERA_API void close_process_world();

}  // namespace tessera::comm
