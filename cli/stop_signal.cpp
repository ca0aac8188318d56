#include "cli/stop_signal.h"

#include <array>
#include <csignal>

#include "cli/verbs.h"

namespace tessera::cli {
namespace {

constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP};
constexpr int kExitBySignal = 128;  // as shells report it

volatile std::sig_atomic_t stop_signal = 0;
std::array<struct sigaction, kStopSignals.size()> before_stop{};

}  // namespace

StopSignal::StopSignal() {
  stop_signal = 0;
  struct sigaction note {};
  note.sa_handler = [](int number) { stop_signal = number; };
  note.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    ::sigaction(kStopSignals[i], nullptr, &before_stop[i]);
    // nohup and background jobs of a shell ignore some: that stays so.
    if (before_stop[i].sa_handler != SIG_IGN) ::sigaction(kStopSignals[i], &note, nullptr);
  }
}

StopSignal::~StopSignal() {
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    ::sigaction(kStopSignals[i], &before_stop[i], nullptr);
  }
}

void StopSignal::check() const {
  if (stop_signal != 0) throw ExitWith{kExitBySignal + stop_signal};
}

}  // namespace tessera::cli
