#pragma once

#include <span>
#include <string>

namespace tessera {

/// Which ranks are written as a range, if there are three or more of them.
enum class RankRuns {
  consecutive,  ///< "0-3", "0,4,8,12"
  strided,      ///< "0-3", "0-12:4" (every fourth)
};

/// A list of ranks as short text: "0,2,5-8".
std::string ranks_text(std::span<const int> ranks, RankRuns runs = RankRuns::strided);

}  // namespace tessera
