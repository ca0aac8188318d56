#include "tessera/comm/failure.h"

#include "tessera/comm/noticeboard.h"
#include "tessera/comm/observer_state.h"
#include "tessera/comm/world.h"

namespace tessera::comm {

void report_failure(RankWorld& world, std::string_view why) {
  // First the reason, then the closed links that make peers look for it.
  if (const auto board = world.observers().state()->board_now()) board->post_failure(why);
  close_links(world);
}

void close_links(RankWorld& world) {
  ObserverState& state = *world.observers().state();
  state.failed = true;
  state.abort_links();
}

}  // namespace tessera::comm
