#pragma once

#include <string>
#include <vector>

#include "run_record.h"

namespace gpt {

/// The losses of each run as a curve, in an SVG element. The first run is the thin line on top, so
/// that a curve it covers still shows.
std::string loss_plot(const std::vector<RunRecord>& runs);

}  // namespace gpt
