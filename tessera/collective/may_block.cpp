#include "tessera/collective/may_block.h"

#include <atomic>

namespace tessera::comm {
namespace {

std::atomic<void* (*)()> begin_hook{nullptr};
std::atomic<void (*)(void*)> end_hook{nullptr};

}  // namespace

void set_block_hooks(const BlockHooks& hooks) {
  end_hook.store(hooks.end, std::memory_order_release);
  begin_hook.store(hooks.begin, std::memory_order_release);
}

MayBlock::MayBlock() {
  if (const auto begin = begin_hook.load(std::memory_order_acquire)) state_ = begin();
}

MayBlock::~MayBlock() {
  if (state_ == nullptr) return;
  if (const auto end = end_hook.load(std::memory_order_acquire)) end(state_);
}

}  // namespace tessera::comm
