#include "tessera/files/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "tessera/base/errors.h"

namespace tessera::files {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path) {
  throw InvalidArgument(
      join_text("cannot read ", path, ": ", std::generic_category().message(errno)));
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

InputFile::InputFile(std::string path, int fd, uint64_t size)
    : path_(std::move(path)), fd_(fd), size_(size) {}

InputFile::~InputFile() { ::close(fd_); }

std::shared_ptr<const InputFile> InputFile::open(const fs::path& path) {
  const std::string name = path.string();
  // O_NONBLOCK: a named pipe in the place of a file is an error below, not a wait for its writer.
  Descriptor file{::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) fail(name);
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) fail(name);
  require(S_ISREG(status.st_mode), name, " is not a regular file");
  return std::shared_ptr<const InputFile>(
      new InputFile(name, std::exchange(file.fd, -1), static_cast<uint64_t>(status.st_size)));
}

void InputFile::read(uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = ::pread(fd_, to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw Error(join_text("cannot read ", path_, ": ",
                            n == 0 ? join_text("it had ", size_,
                                               " bytes when it was opened and "
                                               "has been truncated since")
                                   : std::generic_category().message(errno)));
    }
    to = to.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
}

}  // namespace tessera::files
