#include "tessera/observe/trace.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/errors.h"
#include "tessera/collective/call_info.h"
#include "tessera/observe/recorder.h"

namespace tessera::comm {
namespace {

using nlohmann::json;

double microseconds(Clock::duration d) {
  return std::chrono::duration<double, std::micro>(d).count();
}

/// Overlapping calls go to different lanes, each to the first that is free at its start.
class Lanes {
 public:
  int lane_for(Clock::time_point start, Clock::time_point end) {
    for (size_t i = 0; i < busy_until_.size(); ++i) {
      if (busy_until_[i] > start) continue;
      busy_until_[i] = end;
      return static_cast<int>(i);
    }
    busy_until_.push_back(end);
    return static_cast<int>(busy_until_.size()) - 1;
  }

 private:
  std::vector<Clock::time_point> busy_until_;
};

constexpr int kDoingLane = 0;

json event_json(const CommEvent& event, int rank, Lanes& lanes) {
  const bool in_flight = event.duration.count() < 0;
  const auto duration = in_flight ? std::chrono::nanoseconds(0) : event.duration;
  json args = {{"axis", event.axis},
               {"asked by", event.site},
               {"implicit", event.implicit},
               {"async", event.async},
               {"dtype", dtype_text(event.dtype)},
               {"in", event.shapes_in},
               {"out", event.shapes_out},
               {"bytes", event.bytes()},
               {"exposed us", microseconds(event.exposed)}};
  if (event.group) {
    args["group"] = event.group->name;
    args["ranks"] = event.group->ranks;
  }
  if (event.failed) args["failed"] = true;
  if (in_flight) args["in flight"] = true;
  std::string name(op_name(event.op));
  if (!event.axis.empty()) name += " " + event.axis;
  return {{"name", name},
          {"cat", "comm"},
          {"ph", "X"},
          {"ts", microseconds(event.start.time_since_epoch())},
          {"dur", microseconds(duration)},
          {"pid", rank},
          {"tid", kDoingLane + 1 + lanes.lane_for(event.start, event.start + duration)},
          {"args", std::move(args)}};
}

void add_calls(json& events, const Recorder& recorder) {
  events.push_back({{"name", "process_name"},
                    {"ph", "M"},
                    {"pid", recorder.rank()},
                    {"args", {{"name", join_text("rank ", recorder.rank())}}}});
  Lanes lanes;
  for (const CommEvent& event : recorder.events()) {
    events.push_back(event_json(event, recorder.rank(), lanes));
  }
}

std::string trace_text(json events) {
  const json trace = {{"displayTimeUnit", "ns"}, {"traceEvents", std::move(events)}};
  // Call sites are arbitrary text; invalid UTF-8 must not fail the trace.
  return trace.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::string trace_json(std::span<const Recorder* const> recorders) {
  json events = json::array();
  for (const Recorder* recorder : recorders) add_calls(events, *recorder);
  return trace_text(std::move(events));
}

std::string trace_json(const Recorder& recorder, std::span<const TraceSpan> doing) {
  json events = json::array();
  add_calls(events, recorder);
  for (const TraceSpan& span : doing) {
    events.push_back({{"name", span.name},
                      {"cat", "compute"},
                      {"ph", "X"},
                      {"ts", microseconds(span.start.time_since_epoch())},
                      {"dur", microseconds(span.end - span.start)},
                      {"pid", recorder.rank()},
                      {"tid", kDoingLane}});
  }
  return trace_text(std::move(events));
}

std::string trace_json(const Recorder& recorder) {
  const Recorder* const one = &recorder;
  return trace_json(std::span<const Recorder* const>(&one, 1));
}

void write_trace(const std::string& path, std::span<const Recorder* const> recorders) {
  std::ofstream file(path);
  file << trace_json(recorders) << '\n';
  file.close();
  require(file.good(), "cannot write the trace to \"", path, "\"");
}

}  // namespace tessera::comm
