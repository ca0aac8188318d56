#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "tessera/collective/call_backend.h"
#include "tessera/collective/call_matching.h"
#include "tessera/threads/thread_hub.h"

namespace tessera::comm {

/// One rank's end of a channel as a c10d backend. Every call returns immediately (unless this rank
/// is the one that moves the data). The inputs of an asynchronous call are read when the last rank
/// arrives: do not modify them before wait().
class ThreadBackend final : public CallBackend, public CallMatching {
 public:
  ThreadBackend(std::shared_ptr<ThreadHub> hub, std::span<const int> ranks, int index,
                std::chrono::milliseconds timeout);

  const std::string getBackendName() const override { return "tessera_threads"; }
  uint64_t getSequenceNumberForGroup() override;
  c10d::ErrorType getError() override;
  void abort() override;
  void announce(uint32_t, uint64_t history) override { history_ = history; }
  bool blocks_on_mismatch() const override { return false; }

 private:
  WorkPtr post(Call call, std::chrono::milliseconds timeout) override;
  WorkPtr post_message(Call call, int peer, int tag, std::chrono::milliseconds timeout) override;

  std::shared_ptr<ThreadHub> hub_;
  Channel& channel_;
  std::atomic<uint64_t> history_{0};  // of the next collective
};

/// A backend for a group of one rank: every collective is a copy. Cheaper than real connections,
/// and valid for every kind of world.
c10::intrusive_ptr<c10d::Backend> solo_backend();

}  // namespace tessera::comm
