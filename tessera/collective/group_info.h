#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/base/api.h"

namespace tessera::comm {

/// A tap's description of the group of its backend, for events and error messages.
struct TESSERA_API GroupInfo {
  std::vector<int> ranks;  ///< world ranks, in group order
  int index = 0;           ///< my index in ranks
  std::string name;        ///< "procs:0,1"
  std::string world_name;  ///< "procs"

  int rank() const { return ranks.at(static_cast<size_t>(index)); }  ///< my world rank
  std::string to_text() const;  ///< "group procs:0,1 (ranks 0,1)"
};

}  // namespace tessera::comm
