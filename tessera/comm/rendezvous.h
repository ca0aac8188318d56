#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

/// Where this process finds the others, read from what the launcher left in the environment. A pure
/// function; nothing is connected here.
///
/// The first of these that is there decides (MPI before Slurm, because mpirun inside a Slurm job
/// hands the job's own variables to every rank):
///
///   torchrun, plain   RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
///                     TORCHELASTIC_USE_AGENT_STORE=True: the store is the agent's
///   Open MPI          OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
///   PMI               PMI_RANK, PMI_SIZE (MPICH, Intel MPI); MPI_LOCALRANKID
///   Slurm             SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID
///   none              one rank, no store
///
/// MASTER_ADDR and MASTER_PORT go before what MPI and Slurm imply: the first host of
/// SLURM_JOB_NODELIST (brackets too: "node[03-05,7]" -> "node03"), this machine if all ranks are
/// on it, and a port from the job's number.
///
/// The job's identity is made of TESSERA_JOB_SECRET, TORCHELASTIC_RUN_ID, PMIX_NAMESPACE,
/// SLURM_JOB_ID and under srun SLURM_STEP_ID, whichever are set.
namespace tessera::comm {

/// The value of a variable; none if it is unset. Empty counts as unset.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

struct Rendezvous {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  std::string host;  ///< "" for one rank that needs no store
  int port = 0;
  bool store_is_hosted = false;  ///< by torchrun's agent: all ranks are clients
  std::string attempt;           ///< torchrun's restart count: keeps a new start from old keys
  /// What tells this job from others, as far as the environment does: "SLURM_JOB_ID=17". Of a
  /// secret, a digest.
  std::string job;
  std::string secret;           ///< TESSERA_JOB_SECRET
  std::string source = "none";  ///< "torchrun or plain variables", "Slurm", ...

  bool operator==(const Rendezvous&) const = default;
};

/// InvalidArgument names the variable, what it holds and what was expected.
Rendezvous read_rendezvous(const Environment& environment);

/// "node[03-05,7],other" -> "node03".
std::string first_host(std::string_view node_list);

}  // namespace tessera::comm
