#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

/// Ranks as processes: Gloo for CPU tensors, NCCL for CUDA tensors where this build and machine
/// have it (Gloo serves them too where not).
///
///   auto world = comm::process_world();      // from torchrun, Slurm, MPI or plain variables
///   auto mesh = comm::init_device_mesh("dp=2,tp=4", world);
///
/// How the environment is read: rendezvous.h. Variables of this file:
///   TESSERA_TIMEOUT_S            seconds until an absent peer is an error; default 600
///   TESSERA_CHECK_COLLECTIVES=1  checked mode from the start (checked.h)
///   TESSERA_JOB_SECRET           a random text that the ranks of one job share; tessera launch
///                                makes one. What it guards: signed_store.h, sockets.h
///   GLOO_SOCKET_IFNAME           network interfaces for Gloo, separated by commas
///
/// A world of several ranks sets SIGPIPE to be ignored, unless the program handles it: the death of
/// a peer must be an exception here, not the end of this process.
///
/// Ending: a world that is destroyed after a run without errors first waits, at most its timeout or
/// ten seconds, for all ranks, so that nobody loses the store or a link that it still needs. After
/// a failure it closes its links at once, so that the peers learn of it too.
namespace tessera::comm {

class RankWorld;

inline constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::seconds(600);

struct ProcessWorldOptions {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< which CUDA device is mine

  /// Where rank 0 makes the store and the others find it; or a store that exists already.
  std::string host{};
  int port = 0;
  c10::intrusive_ptr<c10d::Store> store{};
  /// The store at host:port is somebody else's (torchrun's agent): all ranks are its clients.
  bool store_is_hosted = false;

  /// Names the world in groups and messages, and keeps apart two worlds that share one store.
  std::string name = "procs";
  std::string attempt{};  ///< likewise for a restart on the same store
  /// What all ranks of the job have in common and no other job (rendezvous.h); compared when they
  /// meet. "": nothing is known.
  std::string job{};
  /// Known to the ranks of this job alone: signs what they write to the store and opens their links
  /// to each other (signed_store.h, sockets.h). "": none, anyone who reaches the ports may speak.
  std::string secret{};
  std::chrono::milliseconds timeout = kDefaultTimeout;
  /// Which tensors it serves; empty: CPU, and CUDA if this machine has device `local_rank`.
  std::vector<c10::DeviceType> devices{};
};

/// Meets the other ranks; PeerError names those that did not come in time.
std::shared_ptr<RankWorld> make_process_world(ProcessWorldOptions options);

/// This process's world, made from the environment at the first call and kept until the process
/// ends or close_process_world. One rank, without a network, if the environment names none.
std::shared_ptr<RankWorld> process_world();

/// What process_world() gives from now on, for programs whose ranks have met already (Python's
/// torch.distributed): a world over their store. An error if there is another one.
void set_process_world(std::shared_ptr<RankWorld> world);

/// The same if it was made already and is not in the making; never waits.
std::shared_ptr<RankWorld> process_world_if_any();

/// Lets go of process_world() before the process ends; programs with CUDA tensors should, at the
/// end of main, because the CUDA runtime may be gone when static objects are destroyed.
void close_process_world();

}  // namespace tessera::comm
