#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace tessera::comm {

/// A point where ranks wait for each other, over a store: at the start, at each new group, at the
/// end. Unlike c10d's own, it knows who is missing. Each is used once. No other thread may wait on
/// its stores meanwhile.
struct StoreBarrier {
  c10d::Store& store;
  std::string name;            ///< unique in the store
  std::string purpose;         ///< for the message: "the start of world procs at host:1234"
  std::span<const int> ranks;  ///< who comes, world ranks
  int index = 0;               ///< my place among them
  std::chrono::milliseconds timeout{0};
  c10d::Store& board;  ///< where a failed rank says so (peer_diagnostics.h)

  /// The key of `store` that counts the ranks which left the world.
  static constexpr const char* kLeft = "left";

  /// Waits for all; PeerError names those that did not come in time, or cannot come any more.
  /// Returns whether all ranks brought the same word.
  bool attend(const std::string& word) const;

  /// Says instead that this rank will not come, so that nobody waits for it.
  void call_off() const;

 private:
  std::string absent() const;
  void check_for_failures() const;
  std::string_view compare(const std::string& word) const;
};

}  // namespace tessera::comm
