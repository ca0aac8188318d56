#pragma once

#include "tessera/base/api.h"

/// A host language with a global lock (Python's GIL) must release it while a rank waits for others;
/// otherwise thread ranks deadlock. comm marks every place where a call may block; the owner of the
/// lock installs hooks that run there.
///
///   set_block_hooks({.begin = release_if_held, .end = take_again});
namespace tessera::comm {

struct BlockHooks {
  /// Called before a call that may block; its result is passed to `end`.
  void* (*begin)() = nullptr;
  /// Called after it, on the same thread, also if the call threw. Must not throw.
  void (*end)(void* state) = nullptr;
};

/// Process-wide; set it before the first rank runs.
TESSERA_API void set_block_hooks(const BlockHooks& hooks);

/// Scope of a call that may block. Nests: inner scopes find the lock already released.
class MayBlock {
 public:
  MayBlock();
  ~MayBlock();
  MayBlock(const MayBlock&) = delete;
  MayBlock& operator=(const MayBlock&) = delete;

 private:
  void* state_ = nullptr;
};

}  // namespace tessera::comm
