#include "run_record.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <stdexcept>

namespace gpt {

double RunRecord::add(const std::vector<tessera::comm::CommEvent>& events) {
  double sum = 0;
  for (const auto& event : events) {
    const double seconds = std::chrono::duration<double>(event.duration).count();
    const std::string axis = event.axis.empty() ? "all" : event.axis;
    Traffic& traffic = this->traffic[axis + " " + std::string(op_name(event.op))];
    traffic.calls += 1;
    traffic.bytes += event.bytes();
    traffic.seconds += std::max(0.0, seconds);
    sum += std::max(0.0, seconds);
  }
  return sum;
}

double RunRecord::communication_seconds() const {
  double sum = 0;
  for (const auto& [name, one] : traffic) sum += one.seconds;
  return sum;
}

// A word a value, a line a fact.
void RunRecord::save(const std::string& file) const {
  std::ofstream out(file);
  out << std::setprecision(12) << "mesh " << mesh << "\nseconds " << seconds << "\ntokens "
      << tokens << "\n";
  for (const double loss : losses) out << "loss " << loss << "\n";
  for (const auto& [owner, bytes] : memory) out << "memory " << bytes << " " << owner << "\n";
  for (const auto& [name, one] : traffic) {
    out << "traffic " << one.calls << " " << one.bytes << " " << one.seconds << " " << name << "\n";
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
      in >> one.calls >> one.bytes >> one.seconds;
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
