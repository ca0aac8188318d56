#include "tessera/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "tessera/base/errors.h"

namespace tessera::files {
namespace {

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

MappedFile::MappedFile(std::string path, int fd, std::byte* data, size_t size)
    : path_(std::move(path)), fd_(fd), data_(data), size_(size) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
  ::close(fd_);
}

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const std::string name = path.string();
  // O_NONBLOCK: a named pipe in the place of a file is an error below, not a wait for its writer.
  Descriptor file{::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) fail(name);
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) fail(name);
  require(S_ISREG(status.st_mode), name, " is not a regular file");
  const auto size = static_cast<size_t>(status.st_size);
  std::byte* data = nullptr;
  if (size > 0) {  // mmap rejects a length of zero
    void* mapped =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.fd, 0);
    if (mapped == MAP_FAILED) fail(name);
    data = static_cast<std::byte*>(mapped);
  }
  return std::shared_ptr<const MappedFile>(
      new MappedFile(name, std::exchange(file.fd, -1), data, size));
}

void MappedFile::read(std::span<const std::byte> part, std::byte* to) const {
  auto offset = static_cast<off_t>(part.data() - data_);
  for (size_t left = part.size(); left > 0;) {
    const ssize_t n = ::pread(fd_, to, left, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw Error(
          join_text("cannot read ", path_, ": ",
                    n == 0 ? "it has become shorter" : std::generic_category().message(errno)));
    }
    to += n;
    offset += n;
    left -= static_cast<size_t>(n);
  }
}

void MappedFile::prefetch(std::span<const std::byte> part) const {
  ::posix_fadvise(fd_, part.data() - data_, static_cast<off_t>(part.size()), POSIX_FADV_WILLNEED);
}

}  // namespace tessera::files
