#pragma once

#include <tessera/observe/recorder.h>

#include <map>
#include <string>
#include <vector>

/// The figures of one run, as rank 0 saw them: what the report shows and another run compares with.
namespace gpt {

/// The collectives of one kind on one mesh axis, over the whole run.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;
  double seconds = 0;  ///< from call to result, waiting for peers included; some run side by side
  double exposed = 0;  ///< of these, the seconds that the rank stood still
};

struct RunRecord {
  std::string mesh;
  std::vector<double> losses;
  double seconds = 0;        ///< of all steps
  double communicating = 0;  ///< seconds of these with a message of this rank under way
  int64_t tokens = 0;
  std::map<std::string, int64_t> memory;   ///< owner -> bytes on rank 0
  std::map<std::string, Traffic> traffic;  ///< "tp all_reduce" -> what it took

  double exposed() const;  ///< seconds in which this rank stood still, for any message

  void add(const std::vector<tessera::comm::CommEvent>& events);  ///< a step's collectives

  void save(const std::string& file) const;
  static RunRecord load(const std::string& file);
};

/// The largest difference between the losses of two runs; throws if they have not as many.
double largest_difference(const RunRecord& a, const RunRecord& b);

}  // namespace gpt
