#pragma once

#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/comm/world.h"

namespace tessera::checkpoint {

/// Every rank's text, in order of rank.
std::vector<std::string> all_gather_text(comm::RankWorld& world, const std::string& text);

/// The text of any exception, also one that is not a std::exception; never empty.
std::string error_text(const std::exception_ptr& error);

/// Runs `body` and waits for all ranks to do so. If it throws on any rank, every rank throws: the
/// one that failed its own error, the others a PeerError with the text of the first. In a world of
/// several ranks all of these texts begin with the rank that failed.
TESSERA_API void on_all_ranks(comm::RankWorld& world, const std::function<void()>& body);

}  // namespace tessera::checkpoint
