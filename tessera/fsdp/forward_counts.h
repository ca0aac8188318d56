#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

/// The observed forwards of a rank since its last backward, which ranks compare where a backward
/// ends (fsdp/order/rank_agreement.h). A forward is abandoned when its graph is freed and no
/// backward has reached any of its outputs:
///
///   loss = net(x); loss.backward();                      all 1, abandoned 0
///   net(x);        loss = net(x); loss.backward();       all 2, abandoned 1
namespace tessera::fsdp {

struct ForwardCounts {
  std::atomic<int32_t> all = 0;
  std::atomic<int32_t> abandoned = 0;  ///< graphs may be freed on any thread
};

/// One forward, owned by the hooks of its outputs.
struct WatchedForward {
  explicit WatchedForward(std::shared_ptr<ForwardCounts> of) : counts(std::move(of)) {
    ++counts->all;
  }
  ~WatchedForward() {
    if (!reached) ++counts->abandoned;
  }
  WatchedForward(const WatchedForward&) = delete;
  WatchedForward& operator=(const WatchedForward&) = delete;

  std::shared_ptr<ForwardCounts> counts;
  std::atomic<bool> reached = false;  ///< by a backward
};

}  // namespace tessera::fsdp
