#pragma once

#include <ATen/core/Tensor.h>
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

/// While it is alive, no caller gets to see the views that this thread takes: nothing writes to
/// them, so they are never replayed and need no recording. For composite ops that return new
/// tensors.
class UnseenViews {
 public:
  UnseenViews() : outer_(active_) { active_ = true; }
  ~UnseenViews() { active_ = outer_; }
  UnseenViews(const UnseenViews&) = delete;
  UnseenViews& operator=(const UnseenViews&) = delete;

  static bool active() { return active_; }

 private:
  static inline constinit thread_local bool active_ = false;
  bool outer_;
};

/// Called when the view's kernel has nothing left to run.
inline void record_view_function() {
  c10::AutogradState& state = c10::AutogradState::get_tls_state();
  state.set_view_replay_enabled(state.get_grad_mode() && !UnseenViews::active());
}

/// Whether `view` is a view with a recorded function.
bool has_view_function(const at::Tensor& view);

/// The same for a view of `base`. A view that is not recorded, of one that is, makes libtorch chain
/// a replay by strides to the base's function, which costs more than to record it.
inline void record_view_function(const at::Tensor& base) {
  c10::AutogradState& state = c10::AutogradState::get_tls_state();
  const bool is_replayed = state.get_grad_mode() && !UnseenViews::active();
  state.set_view_replay_enabled(is_replayed || has_view_function(base));
}

/// Called by ops that compute with lazy tensors: what follows are views of plain activations.
inline void stop_recording_view_functions() {
  c10::AutogradState::get_tls_state().set_view_replay_enabled(false);
}

/// Throws NotSupported inside a derivative that replays a view by strides. Such a view was taken
/// while its base was plain, before the base became sharded.
void refuse_view_by_strides();

}  // namespace tessera::dtensor
