#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/rank_job.h"
#include "cli/verbs.h"
#include "tessera/base/errors.h"

/// tessera launch -n 4 prog args...: starts the ranks of a job on this host.
namespace tessera::cli {
namespace {

constexpr int kDefaultPort = 29500;  // torchrun's, for jobs of several hosts

constexpr int kMost = 1 << 20;  // more is a typing error

constexpr const char* kLaunchFooter = R"(
Each rank gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, NODE_RANK, GROUP_RANK, ROLE_RANK,
MASTER_ADDR, MASTER_PORT and the like as from torchrun, and OMP_NUM_THREADS=1 if there are several
and it is not set. Its stdin is empty, but for rank 0 with --stdin. TESSERA_JOB_SECRET, a
random text, keeps ranks of other jobs out; for a job of several hosts set it yourself, the same on
each.
The first rank that fails ends the job: its last lines are shown and its exit code (128 + signal) is
launch's, unless --max-restarts lets it begin again: TESSERA_RESTARTS counts. Ctrl-C ends all; a
second one kills them.

Examples
  tessera launch -n 4 build/examples/gpt --mesh dp=2,tp=2
  tessera launch -n 8 --nodes 2 --node-rank 0 --master-addr node0 ./train     (1 on the second host)
  tessera launch -n 2 --log-dir logs python train.py)";

struct LaunchOptions {
  JobShape shape;
  std::string log_dir;
  std::string colour = "auto";
  double grace_s = 5;
  bool pass_stdin = false;
  int max_restarts = 0;
  int min_ranks = 0;  ///< 0: as many as before
};

bool coloured(const std::string& wish, int file) {
  if (wish != "auto") return wish == "always";
  const char* no = std::getenv("NO_COLOR");
  return isatty(file) != 0 && (no == nullptr || *no == '\0');
}

/// The rendezvous address: given by the user for several hosts, a free port for one.
void resolve_rendezvous(JobShape& shape, const CLI::App& verb,
                        std::optional<ReservedPort>& reserved) {
  require(shape.node_rank < shape.nodes, "launch: --node-rank is ", shape.node_rank,
          ", but --nodes ", shape.nodes, " makes it 0 to ", shape.nodes - 1);
  if (shape.nodes > 1) {
    require(verb.count("--master-addr") > 0, "launch: --nodes ", shape.nodes,
            " needs --master-addr: the first host's name or address");
  }
  if (shape.master_port != 0) return;
  if (shape.nodes > 1 || verb.count("--master-addr") > 0) {
    shape.master_port = kDefaultPort;  // all hosts must use the same
  } else {
    shape.master_port = reserved.emplace().number();
  }
}

/// Logs of a restarted job do not overwrite those of the one that failed.
std::string log_dir_of(const LaunchOptions& options) {
  if (options.log_dir.empty() || options.shape.restarts == 0) return options.log_dir;
  return options.log_dir + "/restart" + std::to_string(options.shape.restarts);
}

/// The job, and again after a rank has failed, as often as allowed; the last exit code.
int run_attempts(LaunchOptions options, const CLI::App& verb, JobOptions job) {
  const JobSignals signals;
  for (;;) {
    job.shape = options.shape;
    std::optional<ReservedPort> reserved;  // a new one each time: the old store may linger
    resolve_rendezvous(job.shape, verb, reserved);
    if (job.shape.nodes == 1) job.shape.secret = random_secret();
    job.style.log_dir = log_dir_of(options);
    if (!job.style.log_dir.empty()) std::filesystem::create_directories(job.style.log_dir);
    RankJob attempt(job, signals);
    const int code = attempt.run();
    if (code == 0 || !attempt.rank_failed() || options.shape.restarts == options.max_restarts) {
      return code;
    }
    options.shape.restarts += 1;
    if (options.min_ranks > 0) {
      options.shape.ranks = std::max(options.min_ranks, options.shape.ranks - 1);
    }
    std::cerr << "tessera launch: restart " << options.shape.restarts << " of "
              << options.max_restarts << ", with " << options.shape.ranks
              << (options.shape.ranks == 1 ? " rank\n" : " ranks\n");
  }
}

void run_launch(LaunchOptions options, const CLI::App& verb) {
  const auto words = verb.remaining();
  require(!options.pass_stdin || options.shape.node_rank == 0,
          "launch: --stdin is for the host of rank 0");
  require(!words.empty(), "launch: which program? tessera launch -n 4 prog args...");
  require(!words.front().starts_with("-"), "launch: no option ", words.front(),
          "; options of the program come after its name");

  require(options.shape.nodes == 1 || options.max_restarts == 0,
          "launch: --max-restarts is for jobs of one host; with several, the scheduler restarts");
  require(options.min_ranks <= options.shape.ranks, "launch: --min-ranks ", options.min_ranks,
          " of -n ", options.shape.ranks);
  require(options.min_ranks == 0 || options.max_restarts > 0,
          "launch: --min-ranks is for restarts; give --max-restarts too");

  JobOptions job;
  job.program = find_program(words.front());
  job.arguments.assign(words.begin() + 1, words.end());
  job.grace = std::chrono::milliseconds(static_cast<int64_t>(options.grace_s * 1000));
  job.pass_stdin = options.pass_stdin;
  job.style = {.widest_rank = options.shape.world_size() - 1,
               .colour_out = coloured(options.colour, STDOUT_FILENO),
               .colour_err = coloured(options.colour, STDERR_FILENO),
               .log_dir = {}};
  if (limits_threads(options.shape)) {
    std::cerr << "tessera launch: OMP_NUM_THREADS=1 for each rank, as it was not set\n";
  }
  throw ExitWith{run_attempts(options, verb, job)};
}

}  // namespace

void add_launch(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* verb = app.add_subcommand(
      "launch", "Starts the ranks of a program on this host and stays with them to the end");
  JobShape& shape = options->shape;
  verb->add_option("-n,--nproc-per-node", shape.ranks, "ranks on this host")
      ->check(CLI::Range(1, kMost, "POSITIVE"))
      ->capture_default_str();
  verb->add_option("--nodes", shape.nodes, "hosts of the job, each with as many ranks")
      ->check(CLI::Range(1, kMost, "POSITIVE"))
      ->capture_default_str();
  verb->add_option("--node-rank", shape.node_rank, "which of them this is, from 0")
      ->check(CLI::Range(0, kMost, "NONNEGATIVE"))
      ->capture_default_str();
  verb->add_option("--master-addr", shape.master_addr, "where rank 0 is")->capture_default_str();
  verb->add_option("--master-port", shape.master_port,
                   "a port there; default: a free one, 29500 if there are several hosts")
      ->check(CLI::Range(1, 65535, "PORT"));
  verb->add_option("--log-dir", options->log_dir, "also write rank<N>.log there");
  verb->add_option("--color", options->colour, "of the ranks' prefixes; auto: on a terminal")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->capture_default_str();
  verb->add_option("--grace", options->grace_s, "seconds to end in, before SIGKILL")
      ->check(CLI::Range(0.0, 1e6, "NONNEGATIVE"))
      ->capture_default_str();
  verb->add_flag("--stdin", options->pass_stdin, "rank 0 reads the standard input of launch");
  verb->add_option("--max-restarts", options->max_restarts,
                   "start all ranks again after one has failed, so often at most")
      ->check(CLI::Range(0, kMost, "NONNEGATIVE"))
      ->capture_default_str();
  verb->add_option("--min-ranks", options->min_ranks,
                   "each restart has one rank fewer, down to this number; default: all")
      ->check(CLI::Range(1, kMost, "POSITIVE"));
  verb->prefix_command();
  verb->footer(kLaunchFooter);
  verb->callback([options, verb] { run_launch(*options, *verb); });
}

}  // namespace tessera::cli
