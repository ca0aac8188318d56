#pragma once

#include <c10/core/AutogradState.h>

/// How autograd replays views of sharded tensors. After a write to a view it differentiates the
/// base: by a function that takes the view again or, if the view recorded none, by strides and a
/// storage offset. Sharded tensors have neither memory nor an offset, so only the function is
/// correct. libtorch records it if a thread-local flag is set, and reads the flag after the view's
/// kernel has run. So every sharded view kernel sets it, which covers all threads (Python's main
/// thread, autograd's device threads, threads of the user).
///
/// A view taken without grad mode is not recorded: libtorch refuses to differentiate a write to it,
/// or to its base, so it is never replayed. Recording costs 700 instructions for t, 1,700 for view.
///
/// The flag stays until the next sharded view, or the next op that computes with a lazy tensor:
/// views of plain tensors on this thread are recorded by function meanwhile. That is correct for
/// them too, unless the shape of a base changes in place (transpose_) while it has views:
/// docs/sharp_bits.md.
namespace tessera::dtensor {

/// Called when the view's kernel has nothing left to run.
inline void record_view_function() {
  c10::AutogradState& state = c10::AutogradState::get_tls_state();
  state.set_view_replay_enabled(state.get_grad_mode());
}

/// Called by ops that compute with lazy tensors: what follows are views of plain activations.
inline void stop_recording_view_functions() {
  c10::AutogradState::get_tls_state().set_view_replay_enabled(false);
}

/// Throws NotSupported inside a derivative that replays a view by strides. Such a view was taken
/// while its base was plain, before the base became sharded.
void refuse_view_by_strides();

}  // namespace tessera::dtensor
