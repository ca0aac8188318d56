#pragma once

#include <string>
#include <vector>

/// The environment of launched ranks: the variables that torchrun sets, which tessera, PyTorch and
/// other libraries read.
namespace tessera::cli {

/// The part of a job that runs on this host.
struct JobShape {
  int ranks = 1;  ///< on this host; the same on every host
  int nodes = 1;
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  int restarts = 0;  ///< how often the job was started before
  /// TESSERA_JOB_SECRET of every rank; "": from this process's environment.
  std::string secret{};

  int world_size() const { return ranks * nodes; }
  int rank(int local_rank) const { return node_rank * ranks + local_rank; }
};

/// A free port on this host, reserved during its lifetime: bound but not listening, so a server
/// that reuses addresses (such as the ranks' store) can still bind it.
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
/// Otherwise each rank would start a thread per core of the host.
bool limits_threads(const JobShape& shape);

/// A random text, for JobShape::secret. Only if all ranks are on one host: launchers on several
/// hosts have no shared random source.
std::string random_secret();

/// This process's environment plus the rank's variables, as "NAME=value":
///   RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK GROUP_WORLD_SIZE
///   MASTER_ADDR MASTER_PORT TESSERA_JOB_SECRET TESSERA_RESTARTS, and
///   OMP_NUM_THREADS if limits_threads
/// Variables of an enclosing torchrun about its own store are removed.
std::vector<std::string> rank_environment(const JobShape& shape, int local_rank);

}  // namespace tessera::cli
