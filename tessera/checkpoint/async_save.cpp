#include "tessera/checkpoint/async_save.h"

#include <c10/core/GradMode.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <thread>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/agree.h"
#include "tessera/checkpoint/stored/directory.h"
#include "tessera/checkpoint/write_files.h"
#include "tessera/comm/failure.h"
#include "tessera/files/output_file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using checkpoint::StatePlan;

constexpr auto kPoll = std::chrono::milliseconds(20);
/// A rank whose report is late is probed this often.
constexpr auto kProbe = std::chrono::seconds(1);
constexpr std::string_view kFailed = "failed: ";

fs::path report_path(const fs::path& directory, int rank) {
  return directory / join_text("report-", rank);
}

/// Appears at once and whole: the one who waits for it never sees a part.
void publish(const fs::path& path, const std::string& text) {
  const fs::path unnamed = path.string() + ".tmp";
  files::OutputFile file(unnamed);
  file.write(text);
  file.close();
  fs::rename(unnamed, path);
}

/// Throws PeerError if the rank is dead, or its report does not appear in the world's timeout.
std::string await_report(const fs::path& path, comm::RankWorld& world, int rank) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + world.timeout();
  auto probe = Clock::now() + kProbe;
  while (!fs::exists(path)) {
    if (Clock::now() > deadline) {
      throw PeerError(join_text("rank ", rank, " has not written its part: ", path.string(),
                                " did not appear in ", world.timeout().count() / 1000, " s"));
    }
    if (Clock::now() > probe) {
      try {
        comm::require_alive(world, std::span(&rank, 1));
      } catch (const PeerError& error) {
        if (fs::exists(path)) break;  // its last act
        throw PeerError(join_text("rank ", rank,
                                  " has not written its part of the checkpoint: ", error.what()));
      }
      probe = Clock::now() + kProbe;
    }
    std::this_thread::sleep_for(kPoll);
  }
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

struct AsyncSaver::Running {
  std::shared_ptr<comm::RankWorld> world;
  fs::path directory;
  SaveOptions options;
  StatePlan plan;
  std::vector<StateValue> parts;
  std::optional<checkpoint::SavingDirectory> owned;  // by rank 0
  std::exception_ptr failure;
  std::atomic<bool> done = false;
  std::thread thread;

  void run() noexcept {
    try {
      write();
    } catch (...) {
      failure = std::current_exception();
    }
    parts.clear();
    done = true;
  }

  void write() {
    const c10::AutoGradMode no_grad(false);
    const fs::path saving = checkpoint::saving_path(directory);
    const fs::path mine = report_path(saving, world->rank());
    try {
      const std::string report =
          checkpoint::write_my_file(plan, parts, world->rank(), saving, options.on_progress);
      reached(SaveStage::written);
      publish(mine, report);  // last: rank 0 may commit from here on
    } catch (...) {
      // A full disk has no room for the report either, unless the part that failed goes.
      std::error_code ignored;
      fs::remove(saving / join_text("__", world->rank(), "_0.distcp"), ignored);
      publish(mine, join_text(kFailed, checkpoint::error_text(std::current_exception())));
      throw;
    }
    if (world->rank() == 0) finish(saving);
  }

  void finish(const fs::path& saving) {
    std::vector<std::string> reports;
    for (int rank = 0; rank < world->size(); ++rank) {
      reports.push_back(await_report(report_path(saving, rank), *world, rank));
      if (reports.back().starts_with(kFailed)) {
        throw PeerError(join_text("rank ", rank, ": ", reports.back().substr(kFailed.size())));
      }
    }
    checkpoint::write_description(plan, reports, options.paths, saving);
    for (int rank = 0; rank < world->size(); ++rank) fs::remove(report_path(saving, rank));
    reached(SaveStage::described);
    owned->commit();
    reached(SaveStage::committed);
  }

  void reached(SaveStage stage) const {
    if (options.on_stage) options.on_stage(stage);
  }
};

AsyncSaver::AsyncSaver(Options options) : options_(options) {}

AsyncSaver::~AsyncSaver() {
  if (running_ != nullptr && running_->thread.joinable()) running_->thread.join();
}

bool AsyncSaver::busy() const { return running_ != nullptr && !running_->done; }

void AsyncSaver::wait() {
  if (running_ == nullptr) return;
  if (running_->thread.joinable()) running_->thread.join();
  const std::unique_ptr<Running> ended = std::move(running_);
  checkpoint::on_all_ranks(*ended->world, [&] {
    if (ended->failure) std::rethrow_exception(ended->failure);
  });
}

void AsyncSaver::save(const State& state, const fs::path& directory, const SaveOptions& options) {
  const c10::AutoGradMode no_grad(false);
  const auto world = options.world != nullptr ? options.world : comm::current_world();
  if (running_ != nullptr && options_.refuse_when_busy) {
    checkpoint::on_all_ranks(*world, [&] {
      require(!busy(), "save to ", directory.string(), ": the save to ",
              running_->directory.string(), " has not ended");
    });
  }
  wait();
  auto next = std::make_unique<Running>();
  next->world = world;
  next->directory = directory;
  next->options = options;
  next->plan = checkpoint::plan_state(state, *world);
  checkpoint::on_all_ranks(*world, [&] {
    next->reached(SaveStage::planned);
    if (world->rank() == 0) {
      next->owned.emplace(directory,
                          checkpoint::SavingDirectory::Options{options.spare, world->size()});
    }
    next->reached(SaveStage::prepared);
    next->parts = checkpoint::my_parts(state, next->plan);
    for (auto& part : next->parts) {
      if (auto* tensor = std::get_if<at::Tensor>(&part)) {
        *tensor = tensor->to(at::kCPU, /*non_blocking=*/false, /*copy=*/true,
                             at::MemoryFormat::Contiguous);
      }
    }
  });
  running_ = std::move(next);
  running_->thread = std::thread([running = running_.get()] { running->run(); });
}

}  // namespace tessera
