#include "tessera/fsdp/training_state.h"

#include <array>

#include "tessera/base/errors.h"

namespace tessera {

std::string_view to_text(TrainingState state) {
  constexpr std::array<std::string_view, 4> kNames = {"idle", "forward", "pre_backward",
                                                      "post_backward"};
  return kNames[static_cast<size_t>(state)];
}

}  // namespace tessera

namespace tessera::fsdp {

bool may_follow(TrainingState from, TrainingState to) {
  using enum TrainingState;
  if (from == to || to == idle) return true;
  switch (from) {
    case idle:
      return to != post_backward;  // second backward of a retained graph
    case forward:
      return to == pre_backward;
    case pre_backward:
      return to == post_backward;
    case post_backward:
      return to == pre_backward;
  }
  return false;
}

void GroupState::enter(TrainingState next) {
  if (state_ == next) return;  // the usual case: most touches do not change the state
  if (!may_follow(state_, next)) {
    ensure(false,
           join_text("a group of fully_shard goes from ", to_text(state_), " to ", to_text(next)));
  }
  state_ = next;
}

}  // namespace tessera::fsdp
