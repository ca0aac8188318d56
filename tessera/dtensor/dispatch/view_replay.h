#pragma once

#include <c10/core/AutogradState.h>

/// How autograd replays views of sharded tensors. After a write to a view it differentiates the
/// base: by a function that takes the view again or, if the view recorded none, by strides and a
/// storage offset. Sharded tensors have neither memory nor an offset, so only the function is
/// correct. libtorch records it if a thread-local flag is set, and reads the flag after the view's
/// kernel has run. So every sharded view kernel sets it, which covers all threads (Python's main
/// thread, autograd's device threads, threads of the user).
///
/// The flag stays set: later views of plain tensors on this thread are recorded by function as
/// well. That is correct for them too, unless the shape of a base changes in place (transpose_)
/// while it has views: docs/sharp_bits.md.
namespace tessera::dtensor {

inline void record_view_function() {
  c10::AutogradState::get_tls_state().set_view_replay_enabled(true);
}

/// Throws NotSupported inside a derivative that replays a view by strides. Such a view was taken
/// while its base was plain, before the base became sharded.
void refuse_view_by_strides();

}  // namespace tessera::dtensor
