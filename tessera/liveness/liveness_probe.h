#pragma once

#include <c10/util/intrusive_ptr.h>

#include <future>
#include <memory>
#include <span>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

/// Who is alive? A process that runs answers at once, whatever its other threads compute or wait
/// for; one that was killed, is stopped, or is cut off from the store does not.
///
/// A thread of each process waits on the store until somebody asks; while all goes well there is no
/// traffic.
namespace tessera::comm {

class LivenessProbe {
 public:
  /// Answers for `rank` from now on. `answers` is this object's own connection, because its thread
  /// blocks on it; `rings` another one, that the destructor may use.
  LivenessProbe(c10::intrusive_ptr<c10d::Store> answers, c10::intrusive_ptr<c10d::Store> rings,
                int rank);
  ~LivenessProbe();
  LivenessProbe(const LivenessProbe&) = delete;
  LivenessProbe& operator=(const LivenessProbe&) = delete;

  struct Roll {
    std::vector<int> missing;  ///< did not answer in time
    std::vector<int> left;     ///< said goodbye: their LivenessProbe has ended
  };

  /// Asks `ranks`. The time to answer is two seconds, or ten times what the slowest of the others
  /// took (a busy machine keeps a living process from answering, too), at most kLongest.
  static Roll call(c10d::Store& store, std::span<const int> ranks);
  static constexpr auto kLongest = std::chrono::seconds(10);

  /// Whether this rank said goodbye; asks nobody.
  static bool left(c10d::Store& store, int rank);

  /// The store is about to end: LifeSigns of `ranks` that still wait on it stop, because the
  /// connection would break under them, of which libtorch warns. Waits as `call` does.
  static void dismiss(c10d::Store& store, std::span<const int> ranks);
  /// This one did: there is nothing to ask or to say over the store any more.
  bool dismissed() const;

 private:
  struct State;

  std::shared_ptr<State> state_;
  c10::intrusive_ptr<c10d::Store> rings_;
  int rank_;
  std::future<void> ended_;
};

}  // namespace tessera::comm
