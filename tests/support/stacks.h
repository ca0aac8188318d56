#pragma once

#include <sys/types.h>

/// Prints the stacks of the threads of a process that did not end in time.
namespace tessera::testing {

/// Installs a signal handler that writes the stack of the receiving thread to stderr.
void answer_with_stacks();

/// Signals all threads of `process`, which must have called answer_with_stacks(), and waits for
/// their output.
void ask_for_stacks(pid_t process);

}  // namespace tessera::testing
