#include "tessera/transport/descriptors.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "tessera/base/errors.h"

namespace tessera::comm {
namespace {

/// The whole `limit` if the directory cannot be opened, since that takes a descriptor too.
rlim_t open_descriptors(const rlimit& limit) {
  std::error_code error;
  std::filesystem::directory_iterator at("/proc/self/fd", error);
  if (error) return error.value() == EMFILE ? limit.rlim_cur : 0;
  rlim_t open = 0;
  for (const std::filesystem::directory_iterator end; !error && at != end; at.increment(error)) {
    ++open;
  }
  return open > 0 ? open - 1 : 0;  // without the directory's own
}

}  // namespace

bool is_descriptor_limit(std::string_view what) {
  return what.find(std::strerror(EMFILE)) != std::string_view::npos;
}

std::string with_descriptor_limit(std::string_view what) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::string(what);
  const bool none_left = open_descriptors(limit) >= limit.rlim_cur;
  if (!is_descriptor_limit(what) && !none_left) return std::string(what);
  return join_text(what, " (this process may have ", limit.rlim_cur,
                   " file descriptors, too few for its links; raise the limit by ulimit -n)");
}

void require_descriptors(int count, std::string_view what) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const rlim_t open = open_descriptors(limit);
  if (open + static_cast<rlim_t>(count) <= limit.rlim_cur) return;
  throw NotSupported(join_text(what, " needs about ", count, " file descriptors; this process has ",
                               open, " open and may have ", limit.rlim_cur,
                               "; raise the limit by ulimit -n"));
}

std::string errno_text(int error) { return with_descriptor_limit(std::strerror(error)); }

}  // namespace tessera::comm
