#pragma once

#include <string>
#include <vector>

namespace tessera::comm {

/// What a tap knows of the group that its backend serves; goes into events and error messages.
struct GroupInfo {
  std::vector<int> ranks;  ///< world ranks, in group order
  int index = 0;           ///< my place in ranks
  std::string name;        ///< "procs:0,1"
  std::string world_name;  ///< "procs"

  int rank() const { return ranks.at(static_cast<size_t>(index)); }  ///< my world rank
  std::string to_text() const;  ///< "group procs:0,1 (ranks 0,1)"
};

}  // namespace tessera::comm
