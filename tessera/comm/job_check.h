#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

/// Whether the process that came to a store belongs there: the first thing that ranks find out
/// about each other.
///
/// Rank 0 writes the job's identity and size, the others compare theirs with it, and each takes its
/// rank. So two jobs that were given one port do not become one world, and a WORLD_SIZE that
/// differs between ranks, or a RANK that two of them have, is an error that says so.
///
///   key            written by          value
///   job            rank 0              "4 TORCHELASTIC_RUN_ID=17"
///   rank/<rank>    the rank            "process 4711 on node3", and where that is
///
/// A stranger must not end the job that it found by mistake, but the ranks of a job of which one
/// was started wrongly should not wait for it: one that does not fit, but may be one of ours, waits
/// a few seconds for another to take its place, and `post`s the reason if none does.
namespace tessera::comm {

struct JobMember {
  int rank = 0;
  int size = 1;
  std::string job;  ///< what all ranks of the job have in common (rendezvous.h); "": nothing known
  std::string where;  ///< the store, for messages: "node0:29500"
  std::chrono::milliseconds timeout{0};
};

/// InvalidArgument if this process does not belong to the job behind `store`; PeerError if rank 0
/// does not come within the timeout. `store` holds this world's keys alone.
void check_job(c10d::Store& store, const JobMember& mine,
               const std::function<void(const std::string& why)>& post);

}  // namespace tessera::comm
