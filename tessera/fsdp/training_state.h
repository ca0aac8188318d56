#pragma once

#include <string_view>

#include "tessera/base/api.h"

/// The phase that a group of parameters is in.
///
///   idle ──used by an op──► forward ──used in backward──► pre_backward
///    ▲                         │                               │ all gradients have arrived
///    └──── backward ends ──────┴────── post_backward ◄─────────┘ and are being reduced
///
/// Another gradient leads from post_backward back to pre_backward; a failed backward leads from any
/// state to idle. Other transitions do not exist; attempting one throws InternalError.
namespace tessera {

enum class TrainingState { idle, forward, pre_backward, post_backward };

TESSERA_API std::string_view to_text(TrainingState state);

}  // namespace tessera

namespace tessera::fsdp {

/// The state of one group.
class TESSERA_API GroupState {
 public:
  TrainingState now() const { return state_; }
  /// Throws InternalError if the transition is not allowed.
  void enter(TrainingState next);

 private:
  TrainingState state_ = TrainingState::idle;
};

/// Whether the transition is allowed; staying in the same state is.
TESSERA_API bool may_follow(TrainingState from, TrainingState to);

}  // namespace tessera::fsdp
