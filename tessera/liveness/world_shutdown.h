#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "tessera/liveness/liveness_probe.h"

/// The shutdown protocol of a world of processes, over the store.
///
/// A store whose host is stopped or unreachable does not respond, and a rank must not block on it
/// while shutting down: the calls run on a separate thread, which keeps this object alive as long
/// as the store takes.
namespace tessera::comm {

class WorldShutdown : public std::enable_shared_from_this<WorldShutdown> {
 public:
  struct Options {
    c10::intrusive_ptr<c10d::Store> store;
    c10::intrusive_ptr<c10d::Store> board;  ///< peer diagnostics
    std::unique_ptr<LivenessProbe> probe;
    int rank = 0;
    int size = 1;
    bool hosts_store = false;
    std::chrono::milliseconds patience{0};  ///< for absent ranks, and again for the store
  };

  explicit WorldShutdown(Options options);

  /// none: the store does not respond, and the protocol ends.
  enum class BarrierResult { all_came, some_did_not, none };

  /// Barrier before shutdown: no connection is closed while others may need it. Returns once all
  /// ranks arrived, or after `patience`.
  BarrierResult arrive_and_wait();
  /// Lets the other ranks leave the barrier without this one.
  BarrierResult cancel_barrier();

  /// Counts this rank as gone. If it hosts the store, first waits until the others have read what
  /// they need: while any live rank has not left, up to a limit. `silent` are the ranks that did
  /// not answer the last probe.
  void leave(std::vector<int> silent);

 private:
  void wait_for_others(std::vector<int> silent);

  Options options_;
  std::vector<int> everyone_;
};

}  // namespace tessera::comm
