#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/base/api.h"

/// Reads the rendezvous (rank, size, address of the store) from the launcher's environment
/// variables. A pure function; no connections are made here.
///
/// The first of these that is present decides (MPI before Slurm, because mpirun inside a Slurm job
/// passes the job's variables to every rank):
///
///   torchrun, plain   RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
///                     TORCHELASTIC_USE_AGENT_STORE=True: the store is the agent's
///   Open MPI          OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
///   PMI               PMI_RANK, PMI_SIZE (MPICH, Intel MPI); MPI_LOCALRANKID
///   Slurm             SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID
///   none              one rank, no store
///
/// MASTER_ADDR and MASTER_PORT override what MPI and Slurm imply: the first host of
/// SLURM_JOB_NODELIST (with brackets: "node[03-05,7]" -> "node03"), this machine if all ranks are
/// on it, and a port derived from the job's number.
///
/// The job's identity consists of TESSERA_JOB_SECRET, TORCHELASTIC_RUN_ID, PMIX_NAMESPACE,
/// SLURM_JOB_ID and, under srun, SLURM_STEP_ID, as far as they are set.
namespace tessera::comm {

/// The value of a variable; nullopt if it is unset. Empty values count as unset.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
TESSERA_API Environment process_environment();

struct Rendezvous {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  std::string host;  ///< "" for a single rank that needs no store
  int port = 0;
  bool store_is_hosted = false;  ///< by torchrun's agent: all ranks are clients
  std::string attempt;           ///< torchrun's restart count: separates a restart from old keys
  /// What distinguishes this job from others, as far as the environment does: "SLURM_JOB_ID=17". A
  /// secret appears as a digest.
  std::string job;
  std::string secret;           ///< TESSERA_JOB_SECRET
  std::string source = "none";  ///< "torchrun or plain variables", "Slurm", ...

  bool operator==(const Rendezvous&) const = default;
};

/// Throws InvalidArgument naming the variable, its value and what was expected.
Rendezvous read_rendezvous(const Environment& environment);

/// "node[03-05,7],other" -> "node03".
std::string first_host(std::string_view node_list);

}  // namespace tessera::comm
