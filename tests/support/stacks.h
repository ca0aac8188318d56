#pragma once

#include <sys/types.h>

/// Where the threads of a process stand, for one that did not end in time.
namespace tessera::testing {

/// This process writes the stack of a thread to stderr when that thread is asked.
void answer_with_stacks();

/// Asks all threads of `process`, which called answer_with_stacks(), and gives each time to write.
void ask_for_stacks(pid_t process);

}  // namespace tessera::testing
