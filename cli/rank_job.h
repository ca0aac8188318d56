#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cli/group_guard.h"
#include "cli/rank_environment.h"
#include "cli/rank_output.h"
#include "cli/rank_process.h"

/// The ranks of this host, from start to end.
///
///   all exit with 0                the job ends with 0
///   one ends otherwise             its last lines are shown, the others get SIGTERM, after the
///                                  grace time SIGKILL; the job ends with its code (128 + signal)
///   SIGINT, SIGTERM, SIGHUP here   forwarded to all ranks, SIGKILL after the grace time or at the
///                                  second signal; the job ends with 128 + signal
///   this process is killed         so are the ranks and what they started
namespace tessera::cli {

struct JobOptions {
  JobShape shape;
  OutputStyle style;
  std::chrono::milliseconds grace{5000};
  bool pass_stdin = false;                 ///< the first rank reads this process's standard input
  std::string speaker = "tessera launch";  ///< prefix of messages
  std::string program;
  std::vector<std::string> arguments;
};

/// Blocks, for the rest of this process, the signals that a job handles. Construct one before any
/// job.
class JobSignals {
 public:
  JobSignals();
  ~JobSignals();
  JobSignals(const JobSignals&) = delete;
  JobSignals& operator=(const JobSignals&) = delete;

  int file() const { return file_; }
  const sigset_t& mask_before() const { return before_; }
  int next() const;  ///< a pending signal; 0 if none is left

 private:
  sigset_t before_{};
  int file_ = -1;
};

class RankJob {
 public:
  RankJob(const JobOptions& options, const JobSignals& signals);

  /// Blocks until every rank has ended; returns the exit code.
  int run();
  /// Whether a rank ended it by failing, and not a signal to this process.
  bool rank_failed() const { return dead_ != nullptr; }

 private:
  struct Member {
    int rank;
    RankOutput output;
    RankProcess process;
    bool out_open = true;
    bool err_open = true;
    bool seen_ended = false;
  };
  using Clock = std::chrono::steady_clock;

  void start();
  void say(const std::string& text) const;
  void wait_for_news();
  void read_output(Member& member, Stream stream);
  void note_signals();
  void note_endings();
  void report_death(Member& member);
  void report_others();
  void end_all(int signal);
  void enforce_deadline();
  void drain();
  int running();

  JobOptions options_;
  const JobSignals& signals_;
  GroupGuard guard_;
  std::vector<Member> members_;
  Member* dead_ = nullptr;                      // the first that failed
  std::optional<int> code_;                     // decided by the first rank or signal that ends it
  std::optional<Clock::time_point> kill_time_;  // when the remaining ranks are killed
};

}  // namespace tessera::cli
