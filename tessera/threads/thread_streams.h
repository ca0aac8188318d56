#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include "tessera/collective/call.h"

/// Stream ordering between ranks whose tensors are on an accelerator. A rank that posts records
/// events on its current streams; the rank that moves the data does so on a stream of its own for
/// transfers, which waits for all of them, and records where it ended; Work::wait makes the
/// waiter's current streams wait for that. So transfers overlap with computation, and the host
/// never waits for the device. No effect for CPU tensors.
///
/// Independent of CUDA: c10's device guards find the loaded implementation.
namespace tessera::comm {

class StreamMarks {
 public:
  /// Records an event on the calling thread's current stream of each accelerator with a tensor of
  /// `call`.
  void mark(const Call& call);

  /// Makes the calling thread's current streams wait for the events.
  void block_current_streams() const;

  bool empty() const { return events_.empty(); }

 private:
  void mark(c10::Device device);

  c10::SmallVector<c10::Event, 1> events_;
};

/// While alive, the calling thread's current stream of each accelerator with a tensor of `call` is
/// one of high priority for transfers.
class TransferStreams {
 public:
  TransferStreams() = default;
  ~TransferStreams();
  TransferStreams(const TransferStreams&) = delete;
  TransferStreams& operator=(const TransferStreams&) = delete;

  void enter(const Call& call);

 private:
  void enter(c10::Device device);

  c10::SmallVector<c10::Stream, 1> left_;  // to return to
};

/// Keeps the allocator from reusing the tensors' memory before the calling thread's current streams
/// have finished with it, even if their owner releases them first.
void record_use(const Call& call);

}  // namespace tessera::comm
