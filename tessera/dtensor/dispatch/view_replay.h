#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>

#include "tessera/dtensor/dispatch/recorded_views.h"

/// How autograd replays views of sharded tensors. After a write to a view it differentiates the
/// base: by a function that takes the view again or, if the view recorded none, by strides and a
/// storage offset. Sharded tensors have neither memory nor an offset, so only the function is
/// correct. libtorch records it if a thread-local flag is set, and reads the flag between its
/// autograd kernel and the end of it. So every view op has an autograd kernel for sharded tensors
/// that sets the flag, calls libtorch's and restores the flag: views of plain tensors are recorded
/// as in a program without sharded ones.
///
/// A view taken without grad mode is not recorded: libtorch refuses to differentiate a write to it,
/// or to its base, so it is never replayed. Recording costs 700 instructions for t, 1,700 for view.
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

/// Whether `view` is a view with a recorded function.
bool has_view_function(const at::Tensor& view);

/// Views of `base` that are taken during its lifetime record their function if they may be
/// replayed. So does a view of one with a function: libtorch would chain a replay by strides to
/// that, which costs more than to record.
class ViewFunctionScope {
 public:
  explicit ViewFunctionScope(const at::Tensor& base)
      : state_(c10::AutogradState::get_tls_state()), before_(state_.get_view_replay_enabled()) {
    const bool is_replayed = state_.get_grad_mode() && !UnseenViews::active();
    if (is_replayed || has_view_function(base)) state_.set_view_replay_enabled(true);
  }
  /// To be called with what the kernel of the view op returns.
  template <class Views>
  void record(const Views& views) const {
    if (state_.get_view_replay_enabled()) record_view(views);
  }
  ~ViewFunctionScope() { state_.set_view_replay_enabled(before_); }
  ViewFunctionScope(const ViewFunctionScope&) = delete;
  ViewFunctionScope& operator=(const ViewFunctionScope&) = delete;

 private:
  c10::AutogradState& state_;
  bool before_;
};

/// The autograd kernel of a view op that has a derivative formula.
c10::KernelFunction view_kernel(const c10::OperatorHandle& op);

/// Throws NotSupported inside a derivative that replays a view by strides. Such a view was taken
/// while its base was plain, before the base became sharded.
void refuse_view_by_strides();

}  // namespace tessera::dtensor
