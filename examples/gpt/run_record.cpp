#include "run_record.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <stdexcept>

namespace gpt {

namespace {

using tessera::comm::CommEvent;

/// Seconds in which at least one of the events, given in the order of their start, is under way.
double seconds_covered(const std::vector<CommEvent>& events) {
  std::chrono::nanoseconds covered{0};
  tessera::comm::Clock::time_point until{};
  for (const auto& event : events) {
    const auto end = event.start + std::max(event.duration, std::chrono::nanoseconds(0));
    if (end > until) covered += end - std::max(event.start, until);
    until = std::max(until, end);
  }
  return std::chrono::duration<double>(covered).count();
}

}  // namespace

void RunRecord::add(const std::vector<CommEvent>& events) {
  communicating += seconds_covered(events);
  for (const auto& event : events) {
    const std::string axis = event.axis.empty() ? "all" : event.axis;
    Traffic& one = traffic[axis + " " + std::string(op_name(event.op))];
    one.calls += 1;
    one.bytes += event.bytes();
    one.seconds += std::max(0.0, std::chrono::duration<double>(event.duration).count());
    one.exposed += std::chrono::duration<double>(event.exposed).count();
  }
}

double RunRecord::exposed() const {
  double sum = 0;
  for (const auto& [name, one] : traffic) sum += one.exposed;
  return sum;
}

// A word a value, a line a fact.
void RunRecord::save(const std::string& file) const {
  std::ofstream out(file);
  out << std::setprecision(12) << "mesh " << mesh << "\nseconds " << seconds << "\ncommunicating "
      << communicating << "\ntokens " << tokens << "\n";
  for (const double loss : losses) out << "loss " << loss << "\n";
  for (const auto& [owner, bytes] : memory) out << "memory " << bytes << " " << owner << "\n";
  for (const auto& [name, one] : traffic) {
    out << "traffic " << one.calls << " " << one.bytes << " " << one.seconds << " " << one.exposed
        << " " << name << "\n";
  }
  if (!out.flush()) throw std::runtime_error(file + " cannot be written");
}

RunRecord RunRecord::load(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error(file + " cannot be read");
  const auto rest_of_line = [&] {
    std::string text;
    std::getline(in >> std::ws, text);
    return text;
  };
  RunRecord run;
  for (std::string what; in >> what;) {
    if (what == "mesh") {
      in >> run.mesh;
    } else if (what == "seconds") {
      in >> run.seconds;
    } else if (what == "communicating") {
      in >> run.communicating;
    } else if (what == "tokens") {
      in >> run.tokens;
    } else if (what == "loss") {
      in >> run.losses.emplace_back();
    } else if (what == "memory") {
      int64_t bytes = 0;
      in >> bytes;
      run.memory[rest_of_line()] = bytes;
    } else if (what == "traffic") {
      Traffic one;
      in >> one.calls >> one.bytes >> one.seconds >> one.exposed;
      run.traffic[rest_of_line()] = one;
    } else {
      throw std::runtime_error(file + " is no record of a run: " + what);
    }
  }
  return run;
}

double largest_difference(const RunRecord& a, const RunRecord& b) {
  if (a.losses.size() != b.losses.size()) {
    throw std::runtime_error("the run to compare with has another number of steps");
  }
  double largest = 0;
  for (size_t i = 0; i < a.losses.size(); ++i) {
    const double difference = std::abs(a.losses[i] - b.losses[i]);
    if (!(difference <= largest)) largest = difference;  // NaN too
  }
  return largest;
}

}  // namespace gpt
