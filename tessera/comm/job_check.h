#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

/// Verifies that the process that connected to a store belongs to its job. The first step of
/// rendezvous.
///
/// Rank 0 writes the job's identity and size, the others compare theirs with it, and each claims
/// its rank. So two jobs with the same port do not merge into one world, and a WORLD_SIZE that
/// differs between ranks, or a duplicate RANK, is a clear error.
///
///   key            written by          value
///   job            rank 0              "4 TORCHELASTIC_RUN_ID=17"
///   rank/<rank>    the rank            "process 4711 on node3", and its machine's identity
///
/// A foreign process must not end the job that it reached by mistake, but the ranks of a job with
/// one misconfigured rank should not wait for it. So a process that does not match, but may belong
/// to the job, waits a few seconds for another one to claim its rank, and `post`s the reason if
/// none does.
namespace tessera::comm {

struct JobMember {
  int rank = 0;
  int size = 1;
  std::string job;    ///< what all ranks of the job share (rendezvous.h); "": unknown
  std::string where;  ///< the store, for error messages: "node0:29500"
  std::chrono::milliseconds timeout{0};
};

/// Throws InvalidArgument if this process does not belong to the job of `store`, PeerError if rank
/// 0 does not connect within the timeout. `store` contains only this world's keys.
void check_job(c10d::Store& store, const JobMember& mine,
               const std::function<void(const std::string& why)>& post);

}  // namespace tessera::comm
