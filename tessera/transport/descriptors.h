#pragma once

#include <string>
#include <string_view>

namespace tessera::comm {

/// `what`, and if it says "Too many open files" or no descriptor is left, how many this process may
/// have and what to do. (c10d tries to connect until its timeout without one.).
std::string with_descriptor_limit(std::string_view what);

/// Whether it says so.
bool says_no_descriptors(std::string_view what);

/// NotSupported unless this process may open so many more: what would fail later, on one rank alone
/// and in the middle of a meeting, fails here with its reason. `what` needs them.
void require_descriptors(int count, std::string_view what);

/// The text of errno, with the limit.
std::string errno_text(int error);

}  // namespace tessera::comm
