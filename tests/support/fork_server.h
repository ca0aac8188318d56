#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

/// Starts processes as forks of this program as it was at the beginning of main(): libtorch's
/// libraries are loaded, which takes 0.15 s of CPU in a new program, and no thread runs.
namespace tessera::testing {

/// Forks the server, which ends with this program. `body` is what its processes run; they exit with
/// what it returns. To be called once, before any thread is started.
void begin_fork_server(const std::function<int()>& body);

/// A process with these "NAME=value" alone as its environment, and `output` as its stdout and
/// stderr. It is a child of this one, as by fork().
pid_t fork_from_server(const std::vector<std::string>& environment, int output);

}  // namespace tessera::testing
