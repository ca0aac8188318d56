#pragma once

#include <c10/util/intrusive_ptr.h>

#include <future>
#include <memory>
#include <span>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

/// Determines which ranks are alive. A running process answers immediately, whatever its other
/// threads do; one that was killed, is stopped, or is disconnected from the store does not.
///
/// A thread of each process waits on the store for a probe. This causes no traffic on a TCPStore;
/// other stores are polled twice a second.
namespace tessera::comm {

class LivenessProbe {
 public:
  /// Answers for `rank` from now on. `answers` must be a separate connection, because its thread
  /// blocks on it; `rings` is another one, for use by the destructor.
  LivenessProbe(c10::intrusive_ptr<c10d::Store> answers, c10::intrusive_ptr<c10d::Store> rings,
                int rank);
  ~LivenessProbe();
  LivenessProbe(const LivenessProbe&) = delete;
  LivenessProbe& operator=(const LivenessProbe&) = delete;

  struct ProbeResult {
    std::vector<int> missing;  ///< did not answer in time
    std::vector<int> left;     ///< their LivenessProbe was destroyed
  };

  /// Probes `ranks`. The time to answer is two seconds, or ten times that of the slowest answer (on
  /// a busy machine a live process may be slow as well), at most kLongest.
  static ProbeResult call(c10d::Store& store, std::span<const int> ranks);
  static constexpr auto kLongest = std::chrono::seconds(10);

  /// Whether this rank has left; reads the store only, without a probe.
  static bool left(c10d::Store& store, int rank);

  /// The store is about to end: stops the LivenessProbes of `ranks` that still wait on it, because
  /// libtorch warns when their connections break. Waits as `call` does.
  static void dismiss(c10d::Store& store, std::span<const int> ranks);
  /// Whether this probe was stopped by dismiss(): the store must not be used any more.
  bool dismissed() const;

 private:
  struct State;

  std::shared_ptr<State> state_;
  c10::intrusive_ptr<c10d::Store> rings_;
  int rank_;
  std::future<void> ended_;
};

}  // namespace tessera::comm
