#pragma once

#include <cstdint>
#include <string>

#include "tessera/comm/recorder.h"
#include "tessera/mesh/device_mesh.h"

/// How much of fully_shard's communication hides behind computing.
///
///   reset_communication_time(mesh);
///   step();
///   communication_time(mesh).gathers.exposed_s      -> seconds in which this rank stood and waited
///
///   StepTrace trace(mesh);                          // records from here on
///   step();
///   trace.write("step.json");                       // for chrome://tracing or ui.perfetto.dev
namespace tessera {

/// Of all messages of one kind since the last reset. A message is under way from its call until its
/// caller, having waited for it, goes on: at least as long as it took. Exposed is the part of that
/// in which the caller only called or waited. What is under way and not exposed ran beside
/// computing.
struct MessageSeconds {
  int64_t messages = 0;
  double under_way_s = 0;
  double exposed_s = 0;
};

struct CommunicationTime {
  MessageSeconds gathers;
  MessageSeconds reductions;  ///< reduce_scatter and all_reduce of one group count once
  /// The part of all that was not exposed, 0 to 1.
  double hidden() const;
};

/// Of this rank's groups, over all meshes of the mesh's world.
CommunicationTime communication_time(const DeviceMesh& mesh);
void reset_communication_time(const DeviceMesh& mesh);

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
