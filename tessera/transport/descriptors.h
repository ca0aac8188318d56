#pragma once

#include <string>
#include <string_view>

namespace tessera::comm {

/// Returns `what`. If it contains "Too many open files" or no descriptor is left, adds this
/// process's limit and what to do. (Without a descriptor, c10d retries connecting until its
/// timeout.)
std::string with_descriptor_limit(std::string_view what);

/// Whether it contains that text.
bool is_descriptor_limit(std::string_view what);

/// Throws NotSupported unless this process may open `count` more descriptors. Otherwise the failure
/// would come later, on one rank only, during a rendezvous. `what` names what needs them.
void require_descriptors(int count, std::string_view what);

/// The text of errno, with the limit if relevant.
std::string errno_text(int error);

}  // namespace tessera::comm
