#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace tessera::comm {

/// A barrier between ranks over a store: at the start, at the creation of each group, at the end.
/// Unlike c10d's own, it reports which ranks are missing. Single use. No other thread may block on
/// its stores meanwhile.
struct StoreBarrier {
  c10d::Store& store;
  std::string name;            ///< unique in the store
  std::string purpose;         ///< for error messages: "the start of world procs at host:1234"
  std::span<const int> ranks;  ///< the participants, world ranks
  int index = 0;               ///< my index among them
  std::chrono::milliseconds timeout{0};
  c10d::Store& board;        ///< where a failed rank reports it (peer_diagnostics.h)
  std::string store_host{};  ///< for error messages: "rank 0"

  /// The key of `store` that counts the ranks that have left the world.
  static constexpr const char* kLeft = "left";

  /// Blocks until all ranks arrive. Throws PeerError naming those that did not arrive in time, or
  /// no longer can. Returns whether all ranks passed the same word.
  bool arrive_and_wait(const std::string& word) const;

  /// Reports instead that this rank will not arrive, so that no rank waits for it.
  void cancel() const;

 private:
  std::string absent() const;
  void check_for_failures() const;
  std::string_view compare(const std::string& word) const;
};

}  // namespace tessera::comm
