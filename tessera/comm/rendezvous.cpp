#include "tessera/comm/rendezvous.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>

#include "tessera/base/errors.h"
#include "tessera/liveness/sha256.h"

namespace tessera::comm {
namespace {

constexpr int kDefaultPort = 29500;  // torch's
// Ports that job numbers are mapped to: below Linux's range for outgoing connections.
constexpr int kFirstJobPort = 15000;
constexpr int kJobPorts = 14000;

/// The environment with empty values as unset, and conversions whose errors name the variable.
class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  std::optional<std::string> text(const std::string& name) const {
    auto value = environment_(name);
    if (value && value->empty()) return std::nullopt;
    return value;
  }

  bool has(const std::string& name) const { return text(name).has_value(); }

  int number(const std::string& name) const {
    const auto value = text(name);
    require(value.has_value(), name, " is not set");
    int number = 0;
    const char* end = value->data() + value->size();
    const auto [at, error] = std::from_chars(value->data(), end, number);
    require(error == std::errc{} && at == end, name, " is \"", *value, "\", expected a number");
    return number;
  }

  int number_or(const std::string& name, int otherwise) const {
    return has(name) ? number(name) : otherwise;
  }

  std::string first_of(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (has(name)) return *text(name);
    }
    return {};
  }

 private:
  const Environment& environment_;
};

/// Maps a job identifier to a port; ranks of one job agree, two jobs on a machine rarely collide.
int job_port(std::string_view job) {
  if (job.empty()) return kDefaultPort;
  uint64_t hash = 1469598103934665603ULL;  // FNV-1a: the same in every process and build
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return kFirstJobPort + static_cast<int>(hash % kJobPorts);
}

void check_rank(const Rendezvous& found, const std::string& rank_name,
                const std::string& size_name) {
  require(found.size > 0, size_name, " is ", found.size, ", expected at least 1");
  require(found.rank >= 0 && found.rank < found.size, rank_name, " is ", found.rank,
          ", expected 0 to ", found.size - 1, " (", size_name, " is ", found.size, ")");
  require(found.local_rank >= 0, "the local rank is ", found.local_rank, ", expected 0 or more");
}

int read_port(const Variables& variables, int otherwise) {
  const int port = variables.number_or("MASTER_PORT", otherwise);
  require(port > 0 && port < 65536, "MASTER_PORT is ", port, ", expected 1 to 65535");
  return port;
}

Rendezvous from_plain(const Variables& v) {
  Rendezvous found;
  found.source = "torchrun or plain variables";
  require(v.has("RANK") && v.has("WORLD_SIZE"), v.has("RANK") ? "RANK" : "WORLD_SIZE",
          " is set but ", v.has("RANK") ? "WORLD_SIZE" : "RANK",
          " is not; set both (torchrun does), or neither for one rank");
  found.rank = v.number("RANK");
  found.size = v.number("WORLD_SIZE");
  found.local_rank = v.number_or("LOCAL_RANK", 0);
  check_rank(found, "RANK", "WORLD_SIZE");
  found.store_is_hosted = v.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  found.attempt = v.text("TORCHELASTIC_RESTART_COUNT").value_or("");
  if (found.size == 1 && !v.has("MASTER_ADDR")) {
    found.store_is_hosted = false;
    return found;
  }
  require(v.has("MASTER_ADDR"), "MASTER_ADDR is not set, but WORLD_SIZE is ", found.size,
          "; set it to a host name or address of rank 0's machine");
  require(v.has("MASTER_PORT"), "MASTER_PORT is not set, but MASTER_ADDR is; set it to a port of ",
          *v.text("MASTER_ADDR"), " that is free");
  found.host = *v.text("MASTER_ADDR");
  found.port = read_port(v, 0);
  return found;
}

/// Fills host and port for launchers that do not set MASTER_ADDR.
void find_host(Rendezvous& found, const Variables& v, bool one_machine, std::string_view job) {
  if (found.size == 1 && !v.has("MASTER_ADDR")) return;
  const std::string nodes = v.first_of({"SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (v.has("MASTER_ADDR")) {
    found.host = *v.text("MASTER_ADDR");
  } else if (one_machine) {
    found.host = "127.0.0.1";
  } else if (!nodes.empty()) {
    found.host = first_host(nodes);
  } else {
    throw InvalidArgument(join_text("MASTER_ADDR is not set, and ", found.source, " says ",
                                    found.size,
                                    " ranks without saying where rank 0 is; set it (mpirun -x "
                                    "MASTER_ADDR=<host of rank 0>, or -genv)"));
  }
  found.port = read_port(v, job_port(job));
}

Rendezvous from_open_mpi(const Variables& v) {
  Rendezvous found;
  found.source = "Open MPI";
  found.rank = v.number("OMPI_COMM_WORLD_RANK");
  found.size = v.number("OMPI_COMM_WORLD_SIZE");
  found.local_rank = v.number_or("OMPI_COMM_WORLD_LOCAL_RANK", 0);
  check_rank(found, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  const bool one_machine = v.number_or("OMPI_COMM_WORLD_LOCAL_SIZE", 0) == found.size;
  find_host(found, v, one_machine,
            v.first_of({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID"}));
  return found;
}

Rendezvous from_pmi(const Variables& v) {
  Rendezvous found;
  found.source = "PMI";
  found.rank = v.number("PMI_RANK");
  found.size = v.number("PMI_SIZE");
  found.local_rank = v.number_or("MPI_LOCALRANKID", v.number_or("SLURM_LOCALID", 0));
  check_rank(found, "PMI_RANK", "PMI_SIZE");
  const bool one_machine = v.number_or("MPI_LOCALNRANKS", 0) == found.size;
  find_host(found, v, one_machine, v.first_of({"SLURM_JOB_ID", "PMI_JOBID", "PBS_JOBID"}));
  return found;
}

Rendezvous from_slurm(const Variables& v) {
  Rendezvous found;
  found.source = "Slurm";
  const char* size_name = v.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  require(v.has(size_name), "SLURM_PROCID is set but SLURM_NTASKS is not; start with srun");
  found.rank = v.number("SLURM_PROCID");
  found.size = v.number(size_name);
  found.local_rank = v.number_or("SLURM_LOCALID", 0);
  check_rank(found, "SLURM_PROCID", size_name);
  // Two steps of one job may run concurrently.
  find_host(found, v, false,
            v.first_of({"SLURM_JOB_ID", "SLURM_JOBID"}) + "." + v.first_of({"SLURM_STEP_ID"}));
  return found;
}

/// Only what is equal on all ranks however they were started: mpirun in a Slurm job passes the
/// step's number to some of them only, and the components of a heterogeneous job have different job
/// numbers.
std::string job_identity(const Variables& v, const Rendezvous& found) {
  std::string out;
  const auto add = [&](const std::string& name, const std::string& value) {
    out += join_text(out.empty() ? "" : " ", name, "=", value);
  };
  const auto add_variable = [&](const char* name) {
    if (const auto value = v.text(name)) add(name, *value);
  };
  if (!found.secret.empty()) {
    const Digest digest = hmac_sha256(found.secret, "job identity");
    add("TESSERA_JOB_SECRET#", hex_text(bytes_view(digest).substr(0, 6)));
  }
  add_variable("TORCHELASTIC_RUN_ID");
  if (found.source == "Open MPI") add_variable("PMIX_NAMESPACE");
  if (!v.has("SLURM_HET_SIZE")) add_variable("SLURM_JOB_ID");
  if (found.source == "Slurm") add_variable("SLURM_STEP_ID");
  return out;
}

Rendezvous read_launcher(const Variables& v) {
  if (v.has("RANK") || v.has("WORLD_SIZE")) return from_plain(v);
  if (v.has("OMPI_COMM_WORLD_RANK")) return from_open_mpi(v);
  if (v.has("PMI_RANK")) return from_pmi(v);
  if (v.has("SLURM_PROCID")) return from_slurm(v);
  return {};
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
}

Rendezvous read_rendezvous(const Environment& environment) {
  const Variables v(environment);
  Rendezvous found = read_launcher(v);
  if (found.size == 1 && found.host.empty()) return found;  // no other ranks to connect to
  found.secret = v.text("TESSERA_JOB_SECRET").value_or("");
  found.job = job_identity(v, found);
  return found;
}

std::string first_host(std::string_view node_list) {
  const size_t bracket = node_list.find('[');
  const size_t comma = node_list.find(',');
  if (bracket == std::string_view::npos || comma < bracket) {
    return std::string(node_list.substr(0, comma));
  }
  const size_t close = node_list.find(']', bracket);
  require(close != std::string_view::npos, "the node list \"", node_list, "\" lacks a ']'");
  const std::string_view inside = node_list.substr(bracket + 1, close - bracket - 1);
  const std::string_view first = inside.substr(0, inside.find_first_of(",-"));
  require(!first.empty(), "the node list \"", node_list, "\" has nothing before its first , or -");
  // The text after the bracket may be a suffix, or contain more brackets: "rack[1-2]n[1-4].local".
  const std::string_view rest = node_list.substr(close + 1);
  const std::string tail = rest.empty() || rest.front() == ',' ? std::string() : first_host(rest);
  return std::string(node_list.substr(0, bracket)) + std::string(first) + tail;
}

}  // namespace tessera::comm
