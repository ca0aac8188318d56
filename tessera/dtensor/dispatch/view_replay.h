#pragma once

#include <c10/core/AutogradState.h>

/// How autograd finds a view of a sharded tensor again. After a write to a view it differentiates
/// the base: by a function that takes the view anew, or, where the view recorded none, by strides
/// and a storage offset. Sharded tensors have neither memory nor offset, so only the function is
/// right. libtorch records it if a flag of the calling thread is on, and reads that flag after the
/// view's kernel has run: every view kernel of ours turns it on, so that no thread can be without
/// it (Python's main thread, autograd's device threads, threads of the user).
///
/// The flag stays on: views of plain tensors that this thread takes later are recorded by function
/// as well, which is right for them too.
namespace tessera::dtensor {

inline void record_view_function() {
  c10::AutogradState::get_tls_state().set_view_replay_enabled(true);
}

/// Throws NotSupported inside a derivative that looks for a view by strides. Such a view was taken
/// while its base was plain; then the base became sharded.
void refuse_view_by_strides();

}  // namespace tessera::dtensor
