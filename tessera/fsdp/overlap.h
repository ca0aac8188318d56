#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/base/api.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/observe/recorder.h"

/// Measures how much of fully_shard's communication overlaps with computation.
///
///   comm::Recorder recorder(*comm::current_world());
///   step();
///   communication_time(recorder).gathers.exposed_s  -> seconds in which this rank was blocked
///
///   StepTrace trace(mesh);                          // records from here on
///   step();
///   trace.write("step.json");                       // for chrome://tracing or ui.perfetto.dev
namespace tessera {

namespace fsdp {
class GatherScheduler;
}

/// Totals over all messages of one kind, as recorded (CommEvent::duration, CommEvent::exposed). A
/// message is in flight from its call until the caller returns from waiting for it, and at least as
/// long as the transfer took. Exposed is the part in which the caller was inside the call or the
/// wait; the rest overlapped with computation.
struct TESSERA_API MessageSeconds {
  int64_t messages = 0;
  double under_way_s = 0;
  double exposed_s = 0;
};

struct TESSERA_API CommunicationTime {
  MessageSeconds gathers;
  MessageSeconds reductions;  ///< reduce_scatter, and all_reduce where there are replicas
  /// The fraction of the total that was not exposed, 0 to 1.
  double hidden() const;
};

/// Over the completed messages that fully_shard's groups sent while the recorder was active.
TESSERA_API CommunicationTime communication_time(const comm::Recorder& recorder);

/// Records, during its lifetime, what each group computes and when, and all communication of the
/// rank. Includes groups that are created meanwhile. Several may be active at a time.
class TESSERA_API StepTrace {
 public:
  explicit StepTrace(const DeviceMesh& mesh);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  /// One row of computation, e.g. "forward of group 2"; below it the messages in flight.
  std::string json() const;
  void write(const std::string& path) const;

 private:
  std::shared_ptr<fsdp::GatherScheduler> scheduler_;
  comm::Recorder recorder_;
  size_t first_event_;  // last: what throws before it leaves no recording active
};

}  // namespace tessera
