#include "tessera/fsdp/overlap.h"

#include <fstream>
#include <span>

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tessera/fsdp/gather_scheduler.h"
#include "tessera/observe/trace.h"

namespace tessera {
namespace {

using fsdp::StepLog;

void add(const comm::CommEvent& event, MessageSeconds& to) {
  const auto seconds = [](std::chrono::nanoseconds d) {
    return std::chrono::duration<double>(d).count();
  };
  ++to.messages;
  to.under_way_s += seconds(event.duration);
  to.exposed_s += seconds(event.exposed);
}

/// A use lasts until the next one; the last one lasts until the last event.
std::vector<comm::TraceSpan> computing(std::span<const StepLog::Event> events) {
  std::vector<comm::TraceSpan> spans;
  for (const StepLog::Event& event : events) {
    if (!spans.empty()) spans.back().end = event.at;
    if (event.what != StepLog::What::use) continue;
    const char* pass = event.backward ? "backward" : "forward";
    spans.push_back({join_text(pass, " of group ", event.of), event.at, event.at});
  }
  // Each span ended at the event after it; extends it to the next use.
  for (size_t i = 0; i + 1 < spans.size(); ++i) spans[i].end = spans[i + 1].start;
  return spans;
}

}  // namespace

double CommunicationTime::hidden() const {
  const double under_way = gathers.under_way_s + reductions.under_way_s;
  const double exposed = gathers.exposed_s + reductions.exposed_s;
  return under_way > 0 ? 1 - exposed / under_way : 0;
}

CommunicationTime communication_time(const comm::Recorder& recorder) {
  CommunicationTime out;
  for (const comm::CommEvent& event : recorder.events()) {
    const bool ended = event.duration.count() >= 0;
    if (!ended || event.site != fsdp::kSite) continue;
    if (event.op == comm::CommOp::all_gather) add(event, out.gathers);
    if (event.op == comm::CommOp::reduce_scatter || event.op == comm::CommOp::all_reduce) {
      add(event, out.reductions);
    }
  }
  return out;
}

StepTrace::StepTrace(const DeviceMesh& mesh)
    : scheduler_(fsdp::GatherScheduler::of(mesh)),
      recorder_(comm::world_of(mesh)),
      first_event_(scheduler_->log()->start()) {}

StepTrace::~StepTrace() { scheduler_->log()->stop(); }

std::string StepTrace::json() const {
  const auto events = std::span(scheduler_->log()->events()).subspan(first_event_);
  return comm::trace_json(recorder_, computing(events));
}

void StepTrace::write(const std::string& path) const {
  std::ofstream file(path);
  file << json() << '\n';
  file.close();
  require(file.good(), "cannot write the trace to \"", path, "\"");
}

}  // namespace tessera
