#pragma once

#include <string>
#include <string_view>

#include "tessera/base/api.h"

/// Checks recorded communication against an expectation written as one line of text:
///
///   expect_comm(recorder, "2 all_gather on tp, 1 all_reduce, 0 implicit")
///
///   <n> <op>                 n of them, on axes that no other clause names
///   <n> <op> on <axis>       n of them on this axis ("dp+tp": on both, merged)
///   <n> implicit             n of all were not requested by the caller
///   nothing                  no communication at all
///   ...                      others may occur; without it, an op not listed is a difference
///
/// Ops: all_reduce all_gather reduce_scatter all_to_all broadcast scatter gather reduce send recv
/// barrier.
namespace tessera::comm {

class Recorder;

/// Returns "" if the communication is as expected, else what was expected, what was found, and the
/// list of events:
///   EXPECT_EQ(expect_comm(recorder, "nothing"), "");
/// Throws InvalidArgument if the text cannot be parsed.
TESSERA_API std::string expect_comm(const Recorder& recorder, std::string_view expected);

/// The same, but throws the difference.
TESSERA_API void require_comm(const Recorder& recorder, std::string_view expected);

}  // namespace tessera::comm
