#pragma once

#include <chrono>
#include <span>
#include <string>

/// Recorded communication as a trace that chrome://tracing and ui.perfetto.dev open: one process
/// row a rank, calls that overlap in time in lanes below each other. Times are the machine's steady
/// clock, so traces that ranks on one machine write by themselves fit together.
namespace tessera::comm {

class Recorder;

std::string trace_json(const Recorder& recorder);

/// The same, with a row above the calls of what the rank did meanwhile. Spans follow each other.
struct TraceSpan {
  std::string name;
  std::chrono::steady_clock::time_point start;
  std::chrono::steady_clock::time_point end;
};
std::string trace_json(const Recorder& recorder, std::span<const TraceSpan> doing);
std::string trace_json(std::span<const Recorder* const> recorders);

/// Writes it to a file; an error if that cannot be written.
void write_trace(const std::string& path, std::span<const Recorder* const> recorders);

}  // namespace tessera::comm
