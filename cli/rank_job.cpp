#include "cli/rank_job.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <system_error>

#include "cli/stdin_relay.h"
#include "tessera/base/text.h"

namespace tessera::cli {
namespace {

/// A process that left its group may keep a pipe open; its output is not awaited any longer than
/// this.
constexpr auto kDrainTime = std::chrono::milliseconds(500);
constexpr int kLongestWaitMs = 100;
/// Limit for each of a failed rank's last lines, which were already shown in full.
constexpr size_t kMostOfALine = 1000;

std::string count_of_ranks(int count) {
  return std::to_string(count) + (count == 1 ? " rank" : " ranks");
}

}  // namespace

JobSignals::JobSignals() {
  sigset_t handled;
  sigemptyset(&handled);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&handled, number);
  sigprocmask(SIG_BLOCK, &handled, &before_);
  file_ = signalfd(-1, &handled, SFD_NONBLOCK | SFD_CLOEXEC);
  if (file_ < 0) throw std::system_error(errno, std::generic_category(), "launch: no signalfd");
}

JobSignals::~JobSignals() { close(file_); }

int JobSignals::next() const {
  signalfd_siginfo info{};
  return read(file_, &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

RankJob::RankJob(const JobOptions& options, const JobSignals& signals)
    : options_(options), signals_(signals) {}

void RankJob::say(const std::string& text) const {
  write_all(Stream::err, options_.speaker + ": " + text + "\n");
}

void RankJob::start() {
  members_.reserve(static_cast<size_t>(options_.shape.ranks));
  std::optional<StdinRelay> relay;
  if (options_.pass_stdin) relay.emplace();
  for (int local = 0; local < options_.shape.ranks; ++local) {
    const int rank = options_.shape.rank(local);
    members_.push_back(
        {.rank = rank,
         .output = RankOutput(rank, options_.style),
         .process = RankProcess({.program = options_.program,
                                 .arguments = options_.arguments,
                                 .environment = rank_environment(options_.shape, local),
                                 .signal_mask = signals_.mask_before(),
                                 .stdin_file = relay && local == 0 ? relay->read_end() : -1,
                                 .guard = &guard_})});
  }
  if (relay) relay->start();
}

int RankJob::run() {
  start();
  while (running() > 0) {
    wait_for_news();
    note_signals();
    note_endings();
    enforce_deadline();
  }
  note_endings();  // the last one may have ended meanwhile
  drain();
  report_others();
  return code_.value_or(0);
}

void RankJob::wait_for_news() {
  std::vector<pollfd> files = {{signals_.file(), POLLIN, 0}};
  std::vector<std::pair<Member*, Stream>> readers;
  for (auto& member : members_) {
    if (member.out_open) {
      files.push_back({member.process.out(), POLLIN, 0});
      readers.emplace_back(&member, Stream::out);
    }
    if (member.err_open) {
      files.push_back({member.process.err(), POLLIN, 0});
      readers.emplace_back(&member, Stream::err);
    }
  }
  // SIGCHLD is lost to a thread that was started before JobSignals blocked it (a program that ran
  // in this process leaves such threads), so ended ranks are also looked for now and then.
  int timeout = kLongestWaitMs;
  if (kill_time_) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(*kill_time_ - Clock::now());
    timeout = std::clamp(static_cast<int>(left.count()) + 1, 0, kLongestWaitMs);
  }
  if (poll(files.data(), files.size(), timeout) < 0) return;  // a signal: it is in the signalfd
  for (size_t i = 0; i < readers.size(); ++i) {
    if (files[i + 1].revents != 0) read_output(*readers[i].first, readers[i].second);
  }
}

/// Reads at most one buffer: a rank that prints continuously must not starve the others.
void RankJob::read_output(Member& member, Stream stream) {
  std::array<char, kLongestLine> buffer;
  const int file = stream == Stream::out ? member.process.out() : member.process.err();
  const ssize_t got = read(file, buffer.data(), buffer.size());
  if (got > 0) {
    member.output.take(stream, {buffer.data(), static_cast<size_t>(got)});
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    member.output.finish(stream);
    (stream == Stream::out ? member.out_open : member.err_open) = false;
  }
}

void RankJob::note_signals() {
  for (int number = 0; (number = signals_.next()) != 0;) {
    if (number == SIGCHLD) continue;  // handled by note_endings
    if (code_) {
      say(signal_name(number) + " again: killing " + count_of_ranks(running()));
      for (auto& member : members_) member.process.signal(SIGKILL);
      continue;
    }
    code_ = 128 + number;
    say(signal_name(number) + ": ending " + count_of_ranks(running()));
    end_all(number);
  }
}

void RankJob::note_endings() {
  Member* first = nullptr;
  for (auto& member : members_) {
    const auto& ending = member.process.poll_ending();
    if (!ending || member.seen_ended) continue;
    member.seen_ended = true;
    if (ending->ok() || code_) continue;
    // Of several at once, a killed one is the cause: its peers exit because it is gone.
    const bool killed = ending->signal != 0;
    if (first == nullptr || (killed && first->process.poll_ending()->signal == 0)) first = &member;
  }
  if (first == nullptr) return;
  code_ = first->process.poll_ending()->shell_code();
  report_death(*first);
  if (const int left = running(); left > 0) {
    say("ending the other " + count_of_ranks(left));
    end_all(SIGTERM);
  }
}

void RankJob::report_death(Member& member) {
  dead_ = &member;
  for (const auto stream : {Stream::out, Stream::err}) {
    // Its last output is still in the pipe, which holds at most a few buffers.
    bool& open = stream == Stream::out ? member.out_open : member.err_open;
    pollfd ready{stream == Stream::out ? member.process.out() : member.process.err(), POLLIN, 0};
    for (int i = 0; i < 16 && open && poll(&ready, 1, 0) > 0; ++i) read_output(member, stream);
  }
  std::string text = join_text("rank ", member.rank, " (pid ", member.process.pid(),
                               ") ended with ", member.process.poll_ending()->to_text());
  const auto& lines = member.output.last_lines();
  text += lines.empty() ? "; it printed nothing" : "; its last lines:";
  for (const auto& line : lines) {
    text += "\n  " + member.output.prefix(Stream::err) + line.substr(0, kMostOfALine);
    if (line.size() > kMostOfALine) text += " ...";
  }
  say(text);
}

/// After a failure: reports how the others ended, since the first to die need not be the cause.
void RankJob::report_others() {
  if (dead_ == nullptr || members_.size() == 1) return;
  std::string text = "the others:";
  for (auto& member : members_) {
    if (&member == dead_) continue;
    text += join_text(" rank ", member.rank, " ", member.process.poll_ending()->to_text(), ",");
  }
  text.pop_back();
  say(text);
}

void RankJob::end_all(int signal) {
  for (auto& member : members_) {
    if (!member.process.running()) continue;
    member.process.signal(signal);
    member.process.signal(SIGCONT);  // a stopped process must receive it too
  }
  kill_time_ = Clock::now() + options_.grace;
}

void RankJob::enforce_deadline() {
  if (!kill_time_ || Clock::now() < *kill_time_) return;
  kill_time_.reset();
  const int left = running();
  if (left == 0) return;
  say("killing " + count_of_ranks(left) + " that did not end in time");
  for (auto& member : members_) member.process.signal(SIGKILL);
}

/// All ranks have ended: kills remaining processes of their groups, and forwards the rest of the
/// output.
void RankJob::drain() {
  for (const auto& member : members_) member.process.signal(SIGKILL);
  kill_time_ = Clock::now() + kDrainTime;
  const auto open = [](const Member& m) { return m.out_open || m.err_open; };
  while (std::any_of(members_.begin(), members_.end(), open) && Clock::now() < *kill_time_) {
    wait_for_news();
    while (signals_.next() != 0) {
    }
  }
  for (auto& member : members_) {
    member.output.finish(Stream::out);
    member.output.finish(Stream::err);
  }
}

int RankJob::running() {
  return static_cast<int>(std::count_if(members_.begin(), members_.end(),
                                        [](Member& m) { return m.process.running(); }));
}

}  // namespace tessera::cli
