#pragma once

#include <cstdint>
#include <string>

#include "tessera/mesh/device_mesh.h"
#include "tessera/observe/recorder.h"

/// How much of fully_shard's communication hides behind computing.
///
///   comm::Recorder recorder(*comm::current_world());
///   step();
///   communication_time(recorder).gathers.exposed_s  -> seconds in which this rank stood and waited
///
///   StepTrace trace(mesh);                          // records from here on
///   step();
///   trace.write("step.json");                       // for chrome://tracing or ui.perfetto.dev
namespace tessera {

/// Of all messages of one kind, as the recorder saw them (CommEvent::duration, CommEvent::exposed):
/// a message is under way from its call until its caller, having waited for it, goes on, at least
/// as long as it took; exposed is the part of that in which the caller only called or waited. What
/// is under way and not exposed ran beside computing.
struct MessageSeconds {
  int64_t messages = 0;
  double under_way_s = 0;
  double exposed_s = 0;
};

struct CommunicationTime {
  MessageSeconds gathers;
  MessageSeconds reductions;  ///< reduce_scatter, and all_reduce where there are replicas
  /// The part of all that was not exposed, 0 to 1.
  double hidden() const;
};

/// Of the messages that fully_shard's groups sent while the recorder listened, and that ended.
CommunicationTime communication_time(const comm::Recorder& recorder);

/// While it lives: what each group computes and when, and all communication of the rank.
class StepTrace {
 public:
  explicit StepTrace(const DeviceMesh& mesh);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  /// One row of what is computed, "forward of group 2"; below it the messages under way.
  std::string json() const;
  void write(const std::string& path) const;

 private:
  DeviceMesh mesh_;
  comm::Recorder recorder_;
};

}  // namespace tessera
