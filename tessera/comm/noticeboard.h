#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "tessera/comm/call_info.h"

/// What processes tell each other when a collective does not go well, over the store instead of the
/// links: who failed and why, who is still alive, who waits in which call.
///
/// Best effort by contract: nothing here throws, and nothing takes longer than a few seconds, also
/// when the store is gone. Nothing is written while all goes well.
namespace tessera::comm {

class Noticeboard {
 public:
  static constexpr const char* kPrefix = "board";  ///< of its keys in a world's store

  /// `store` is this object's own connection, because others may block on theirs; made beforehand,
  /// because connecting takes a name look-up, which may take seconds.
  Noticeboard(c10::intrusive_ptr<c10d::Store> store, int rank);

  struct Failure {
    int rank = 0;
    std::string text;
  };

  /// Says that this rank failed by itself. Only the first failure of the world is kept.
  void post_failure(std::string_view text) noexcept;
  std::optional<Failure> first_failure() noexcept;
  /// The same over a connection that the caller holds and may wait on.
  static std::optional<Failure> first_failure(c10d::Store& store);

  /// Says that this rank is alive and waits in this call of `channel`; returns it and the calls
  /// that others of the group (of a large one, some) said so of, by index. They may have moved on
  /// since.
  std::vector<RankCall> meet(const GroupInfo& group, const std::string& channel,
                             const RankCall& mine) noexcept;

  /// The group's ranks that posted nothing at all within `patience`; none if the store does not
  /// answer.
  std::optional<std::vector<int>> silent(const GroupInfo& group,
                                         std::chrono::milliseconds patience) noexcept;

 private:
  struct Line;  // the connection; outlives this object if an answer never comes

  std::shared_ptr<Line> line_;
  int rank_;
};

}  // namespace tessera::comm
