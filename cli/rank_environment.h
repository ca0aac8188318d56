#pragma once

#include <string>
#include <vector>

/// What a launcher tells its ranks: the variables that torchrun sets, so that tessera, PyTorch and
/// whatever else reads them find each other.
namespace tessera::cli {

/// The part of a job that runs on this host.
struct JobShape {
  int ranks = 1;  ///< on this host; every host has as many
  int nodes = 1;
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  int restarts = 0;  ///< how often the job was started before
  /// TESSERA_JOB_SECRET of every rank; "": what this process's environment says.
  std::string secret{};

  int world_size() const { return ranks * nodes; }
  int rank(int local_rank) const { return node_rank * ranks + local_rank; }
};

/// A port that is free on this host, kept from others while this lives: bound but not listening, so
/// a server that reuses addresses (the ranks' store does) can still take it.
class ReservedPort {
 public:
  ReservedPort();
  ~ReservedPort();
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;

  int number() const { return number_; }

 private:
  int socket_ = -1;
  int number_ = 0;
};

/// Whether ranks get OMP_NUM_THREADS=1: several ranks and no value from the user, as in torchrun.
/// Otherwise each rank would start a thread for every core of the host.
bool limits_threads(const JobShape& shape);

/// A random text, for JobShape::secret. Only where all ranks are of one host: launchers of several
/// hosts share no other word than what the user gives to each.
std::string random_secret();

/// This process's environment with the rank's variables in it, as "NAME=value":
///   RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK GROUP_WORLD_SIZE
///   MASTER_ADDR MASTER_PORT TESSERA_JOB_SECRET TESSERA_RESTARTS, and
///   OMP_NUM_THREADS if limits_threads
/// What an outer torchrun left about its own store is taken out.
std::vector<std::string> rank_environment(const JobShape& shape, int local_rank);

}  // namespace tessera::cli
