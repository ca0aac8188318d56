#include "cli/program_job.h"

#include <ATen/Context.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <set>
#include <thread>

#include "cli/program_summary.h"
#include "cli/rank_job.h"
#include "cli/verbs.h"
#include "tessera/base/errors.h"
#include "tessera/base/progress_bar.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tessera/files/safetensors.h"
#include "tessera/interp/sharded_program.h"

namespace tessera::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kLoadKey = "tessera.load_s";
constexpr const char* kRunKey = "tessera.run_s";

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

ProgramOptions load_options(const ProgramJob& job) {
  ProgramOptions options;
  if (job.device.empty()) return options;
  require(job.device != "cuda" || at::hasCUDA(),
          "--device cuda: this machine or its libtorch has no CUDA");
  const char* local = std::getenv("LOCAL_RANK");
  const bool indexed = job.device == "cuda" && local != nullptr;
  options.device = c10::Device(indexed ? join_text(job.device, ":", local) : job.device);
  return options;
}

/// Numbers among the results are written as 0-dim tensors; None is left out.
NamedTensors tensors_of(const Program::NamedValues& values) {
  NamedTensors out;
  for (const auto& [name, value] : values) {
    if (value.isTensor() && value.toTensor().defined()) {
      out.emplace_back(name, value.toTensor());
    } else if (value.isScalar()) {
      out.emplace_back(name, at::scalar_tensor(value.toScalar(), value.isInt()    ? at::kLong
                                                                 : value.isBool() ? at::kBool
                                                                                  : at::kDouble));
    }
  }
  return out;
}

Program::NamedValues inputs_of(const ProgramJob& job, const Program& program,
                               const ProgramOptions& options) {
  Program::NamedValues values;
  for (const auto& [name, tensor] : read_tensors(job.inputs)) {
    const auto port = std::ranges::find(program.inputs(), name, &ProgramPort::name);
    const bool number = port != program.inputs().end() && !port->tensor && tensor.numel() == 1;
    if (number) {
      const at::Scalar scalar = tensor.item();
      values.emplace_back(name, scalar);
    } else {
      values.emplace_back(name, options.device ? tensor.to(*options.device) : tensor);
    }
  }
  return values;
}

/// Where rank 0 of several writes how many runs it has done; the process that started it reads.
std::filesystem::path progress_path(const ProgramJob& job) {
  return job.outputs.string() + ".progress";
}

/// How far the runs are: drawn here if this is the only rank, else left in a file by rank 0.
class ProgressReport {
 public:
  explicit ProgressReport(const ProgramJob& job) : job_(job), bar_("running") {}

  void ran(int times) {
    const auto total = static_cast<uint64_t>(job_.repeat);
    if (job_.repeat == 1) return;
    if (job_.target.ranks == 1) return bar_.show_count(static_cast<uint64_t>(times), total, "runs");
    const bool due = Clock::now() > next_;
    if (!due || comm::current_world()->rank() != 0) return;
    next_ = Clock::now() + kPause;
    std::ofstream(progress_path(job_)) << times;
  }

 private:
  static constexpr auto kPause = std::chrono::milliseconds(100);
  const ProgramJob& job_;
  ProgressBar bar_;
  Clock::time_point next_{};
};

/// Draws what rank 0 reports, from construction to destruction.
class ProgressWatch {
 public:
  explicit ProgressWatch(const ProgramJob& job) : job_(job) {
    if (job.repeat > 1 && ::isatty(STDERR_FILENO) == 1) thread_ = std::thread([this] { watch(); });
  }
  ~ProgressWatch() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
    ::unlink(progress_path(job_).c_str());
  }
  ProgressWatch(const ProgressWatch&) = delete;
  ProgressWatch& operator=(const ProgressWatch&) = delete;

 private:
  void watch() {
    ProgressBar bar("running");
    while (!done_) {
      uint64_t times = 0;
      if (std::ifstream(progress_path(job_)) >> times) {
        bar.show_count(times, static_cast<uint64_t>(job_.repeat), "runs");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  const ProgramJob& job_;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

/// Runs anything with run_named.
template <typename Runnable>
ProgramRun timed_run(const ProgramJob& job, Runnable& program, const Program& local,
                     const ProgramOptions& options, double load_s) {
  ProgressReport report(job);
  const auto inputs = inputs_of(job, local, options);
  ProgramRun out;
  out.load_s = load_s;
  for (int i = 0; i < job.repeat; ++i) {
    const auto start = Clock::now();
    out.outputs = tensors_of(program.run_named(inputs));
    for (auto& [name, tensor] : out.outputs) tensor = tensor.cpu();  // waits for the device
    out.run_s = since(start);
    report.ran(i + 1);
  }
  return out;
}

ProgramRun run_here(const ProgramJob& job) {
  ProgramOptions options = load_options(job);
  const auto start = Clock::now();
  if (job.target.manifest) {
    ShardedProgram program = ShardedProgram::load(job.target.path, nullptr, options);
    const double load_s = since(start);
    return timed_run(job, program, program.local(), options, load_s);
  }
  if (job.target.ranks > 1) {  // the same file on all ranks; "0" is the group of all
    const auto world = comm::current_world();
    std::vector<int> everyone;
    for (int rank = 0; rank < world->size(); ++rank) everyone.push_back(rank);
    options.groups.emplace("0", world->group(everyone));
  }
  Program program = Program::load(job.target.path, options);
  const double load_s = since(start);
  return timed_run(job, program, program, options, load_s);
}

void write_run(const ProgramJob& job, const ProgramRun& run) {
  write_tensors(job.outputs, run.outputs,
                {{kLoadKey, std::to_string(run.load_s)}, {kRunKey, std::to_string(run.run_s)}});
}

ProgramRun read_run(const std::filesystem::path& path) {
  const files::SafetensorsFile file(path);
  const auto seconds = [&](const char* key) {
    const auto found = file.metadata().find(key);
    return found == file.metadata().end() ? 0.0 : std::stod(found->second);
  };
  return {.outputs = read_tensors(path), .load_s = seconds(kLoadKey), .run_s = seconds(kRunKey)};
}

/// Requires each tensor of the manifest in the inputs file, of its type and shape: one process
/// reports the error, not every rank.
void check_inputs(const partition::Manifest& manifest, const std::filesystem::path& path) {
  const NamedTensors given = read_tensors(path);
  for (const auto& wanted : manifest.inputs) {
    const auto found = std::ranges::find(given, wanted.name, &NamedTensors::value_type::first);
    require(found != given.end(), path.string(), " has no tensor ", wanted.name,
            ", an input of the program");
    require(static_cast<DType>(found->second.scalar_type()) == wanted.dtype, path.string(), ": ",
            wanted.name, " is ", dtype_text(found->second), ", the program's is ",
            dtype_name(wanted.dtype));
    try {
      wanted.sharding(manifest.mesh, found->second.sizes().vec());
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(join_text(path.string(), ": ", error.what()));
    }
  }
}

int run_ranks_of(const ProgramJob& job) {
  if (job.target.manifest) {  // one process reports a bad file before ranks start
    check_inputs(*job.target.manifest, job.inputs);
    job.target.check_ranks();
  }
  JobOptions options;
  options.speaker = "tessera run";
  options.program = "/proc/self/exe";
  options.arguments = {"run",
                       job.target.path.string(),
                       "--as-rank",
                       "-n",
                       std::to_string(job.target.ranks),
                       "--inputs",
                       job.inputs.string(),
                       "-o",
                       job.outputs.string(),
                       "--repeat",
                       std::to_string(job.repeat)};
  if (!job.device.empty()) {
    options.arguments.insert(options.arguments.end(), {"--device", job.device});
  }
  const ReservedPort port;
  options.shape.ranks = job.target.ranks;
  options.shape.master_port = port.number();
  options.shape.secret = random_secret();
  options.style.widest_rank = job.target.ranks - 1;
  const JobSignals signals;
  const ProgressWatch watch(job);  // after the signals are blocked: its thread must not take them
  return RankJob(options, signals).run();
}

}  // namespace

ProgramTarget ProgramTarget::find(const std::filesystem::path& path, std::optional<int> ranks) {
  ProgramTarget target{.path = path, .manifest = {}, .ranks = ranks.value_or(1)};
  require(std::filesystem::exists(path), path.string(), " does not exist");
  if (!partition::is_sharded_program(path)) {
    require(!std::filesystem::is_directory(path), path.string(), " is a directory without ",
            partition::kManifestName, "; tessera shard makes directories that can be run");
    return target;
  }
  target.manifest = partition::Manifest::read(path);
  target.ranks = target.manifest->mesh.size();
  require(!ranks || *ranks == target.ranks, path.string(), " is sharded for ",
          target.manifest->mesh, ", ", target.ranks, " ranks, and cannot run on ", *ranks);
  return target;
}

program::ExportedProgram ProgramTarget::a_program() const {
  if (!manifest) return program::Archive::open(path)->read_program();
  const auto& first = manifest->ranks.front();
  return program::Archive::open(first.file_in(path))->read_program(first.model);
}

void ProgramTarget::check_ranks() const {
  for (const auto& rank : manifest->ranks) {
    const auto archive = program::Archive::open(rank.file_in(path));
    check_program(archive->read_program(rank.model), archive->path(), rank.model);
  }
}

void ProgramTarget::check_contents() const {
  std::set<std::filesystem::path> files = {path};
  if (manifest) {
    files.clear();
    for (const auto& rank : manifest->ranks) files.insert(rank.file_in(path));
  }
  for (const auto& file : files) program::Archive::open(file)->verify_contents();
}

ProgramRun run_job(const ProgramJob& job) {
  if (job.target.ranks == 1) {
    ProgramRun run = run_here(job);
    write_run(job, run);
    return run;
  }
  if (const int code = run_ranks_of(job); code != 0) throw ExitWith{code};
  return read_run(job.outputs);
}

void run_as_rank(const ProgramJob& job) {
  {
    const ProgramRun run = run_here(job);
    if (comm::current_world()->rank() == 0) write_run(job, run);
  }
  comm::close_process_world();
}

ScratchDir::ScratchDir() {
  std::string name = (std::filesystem::temp_directory_path() / "tessera_run_XXXXXX").string();
  require(::mkdtemp(name.data()) != nullptr, "no directory can be made in ",
          std::filesystem::temp_directory_path().string());
  path_ = name;
}

ScratchDir::~ScratchDir() {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(path_, ignored)) {
    unlink(entry.path().c_str());
  }
  rmdir(path_.c_str());
}

}  // namespace tessera::cli
