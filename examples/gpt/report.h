#pragma once

#include <string>
#include <vector>

#include "run_record.h"

namespace gpt {

/// One HTML file without scripts or links: loss curves, communication by axis, memory by owner, and
/// the sample. `runs`: this one first, then those it is compared with.
void write_report(const std::string& file, const std::vector<RunRecord>& runs,
                  const std::string& sample);

}  // namespace gpt
