#pragma once

#include <string_view>

/// What a group of parameters is in the middle of.
///
///   idle ──touched by an op──► forward ──touched in backward──► pre_backward
///    ▲                            │                                  │ all gradients have come,
///    └──── backward ends ─────────┴──────── post_backward ◄──────────┘ they are being reduced
///
/// A gradient that comes once more leads back from post_backward to pre_backward; a backward that
/// fails, from anywhere to idle. Other ways do not exist, and the library asserts it.
namespace tessera {

enum class TrainingState { idle, forward, pre_backward, post_backward };

std::string_view to_text(TrainingState state);

}  // namespace tessera

namespace tessera::fsdp {

/// The state of one group.
class StateOfGroup {
 public:
  TrainingState now() const { return state_; }
  /// An InternalError if no way leads there.
  void enter(TrainingState next);

 private:
  TrainingState state_ = TrainingState::idle;
};

/// Whether a way leads from one to the other; staying is one.
bool may_follow(TrainingState from, TrainingState to);

}  // namespace tessera::fsdp
