#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "tessera/liveness/liveness_probe.h"

/// What a rank says on the store when its world of processes ends, and what it waits for.
///
/// A store whose host is stopped, or cut off, answers neither yes nor no, and a rank that ends must
/// not wait for it without limit: the calls run on a thread of their own, which keeps this object
/// for as long as the store takes.
namespace tessera::comm {

class WorldShutdown : public std::enable_shared_from_this<WorldShutdown> {
 public:
  struct Options {
    c10::intrusive_ptr<c10d::Store> store;
    c10::intrusive_ptr<c10d::Store> board;  ///< the noticeboard
    std::unique_ptr<LivenessProbe> life_sign;
    int rank = 0;
    int size = 1;
    bool hosts_store = false;
    std::chrono::milliseconds patience{0};  ///< for ranks that do not come, and again for the store
  };

  explicit WorldShutdown(Options options);

  /// none: the store does not answer, and there is nothing more to say.
  enum class BarrierResult { all_came, some_did_not, none };

  /// Nobody closes a link while others may need it; but nobody waits long for one that does not
  /// come.
  BarrierResult arrive_and_wait();
  /// Those who come to it need not wait for this rank.
  BarrierResult cancel_barrier();

  /// Counts this rank as gone. Where it hosts the store, waits until the others have read what they
  /// need: while anybody lives that has not left, but not for ever. `silent` did not answer when
  /// they were last asked.
  void leave(std::vector<int> silent);

 private:
  void outlast_the_others(std::vector<int> silent);

  Options options_;
  std::vector<int> everyone_;
};

}  // namespace tessera::comm
