#pragma once

/// A host language with a lock of its own (Python's GIL) must give it up while a rank waits for
/// others, or ranks that are threads of one process wait for each other for ever. comm marks every
/// place where a call may wait; whoever owns the lock says what to do there.
///
///   set_block_hooks({.begin = release_if_held, .end = take_again});
namespace tessera::comm {

struct BlockHooks {
  /// Called before a call that may wait; what it returns goes to `end`.
  void* (*begin)() = nullptr;
  /// Called after it, on the same thread, also when the call threw. Must not throw.
  void (*end)(void* state) = nullptr;
};

/// For the whole process; set it before the first rank runs.
void set_block_hooks(const BlockHooks& hooks);

/// Around a call that may wait. Nests: an inner one finds the lock given up already.
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
