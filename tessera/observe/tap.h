#pragma once

#include <c10/util/intrusive_ptr.h>

#include "tessera/collective/group_info.h"

namespace c10d {
class Backend;
}

/// A tap wraps a backend of any kind and intercepts every call:
///
///   - errors of the backend, thrown at the call or at Work::wait, become tessera's: PeerError that
///     names this rank, the op, its shapes and the group; InvalidArgument for bad arguments
///   - recorders (recorder.h) get an event
///   - in checked mode (checked.h) the ranks first compare their calls
///   - the result is always a Work: a completed one if the backend returns none, as NCCL does for
///     blocking calls
///
/// It is itself a c10d::Backend, so `_c10d_functional` ops and direct c10d calls pass through it.
/// Errors that arrive through Work::getFuture keep the backend's type.
///
/// Cost without recorders: a virtual call, an atomic load and one small Work object.
namespace tessera::comm {

class Observers;

c10::intrusive_ptr<c10d::Backend> tap(c10::intrusive_ptr<c10d::Backend> inner, GroupInfo info,
                                      Observers& observers);

}  // namespace tessera::comm
