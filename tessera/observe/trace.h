#pragma once

#include <chrono>
#include <span>
#include <string>

#include "tessera/base/api.h"

/// Recorded communication as a trace for chrome://tracing and ui.perfetto.dev: one process row per
/// rank, overlapping calls in separate lanes. Times are from the machine's steady clock, so traces
/// written separately by ranks on one machine are consistent.
namespace tessera::comm {

class Recorder;

TESSERA_API std::string trace_json(const Recorder& recorder);

/// The same, with a row above the calls for other activity of the rank. Spans must not overlap.
struct TESSERA_API TraceSpan {
  std::string name;
  std::chrono::steady_clock::time_point start;
  std::chrono::steady_clock::time_point end;
};
TESSERA_API std::string trace_json(const Recorder& recorder, std::span<const TraceSpan> doing);
TESSERA_API std::string trace_json(std::span<const Recorder* const> recorders);

/// Writes it to a file; throws if that fails.
TESSERA_API void write_trace(const std::string& path, std::span<const Recorder* const> recorders);

}  // namespace tessera::comm
