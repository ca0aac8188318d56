#pragma once

#include <c10/core/Event.h>
#include <c10/util/SmallVector.h>

#include "tessera/collective/call.h"

/// Order between ranks whose tensors live on an accelerator. A rank that posts marks how far its
/// current streams are; the rank that moves the data makes its own streams wait for all marks, and
/// marks where it ended; Work::wait makes the waiter's current streams wait for that. The host
/// never waits for the device. For tensors on the CPU all this is empty.
///
/// Nothing here knows CUDA: c10's device guards find the implementation that is loaded.
namespace tessera::comm {

class StreamMarks {
 public:
  /// Marks the calling thread's current stream on each accelerator that holds a tensor of `call`.
  void mark(const Call& call);

  /// The calling thread's current streams wait until the marks are passed.
  void block_current_streams() const;

  bool empty() const { return events_.empty(); }

 private:
  void mark(c10::Device device);

  c10::SmallVector<c10::Event, 1> events_;
};

/// Keeps the allocator from reusing the tensors' memory before the calling thread's current streams
/// are through with it, also if their owner lets go of them first.
void record_use(const Call& call);

}  // namespace tessera::comm
