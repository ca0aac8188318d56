#include "tessera/files/mapped_output.h"

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

[[noreturn]] void fail(std::string_view doing, const std::string& path, int code) {
  throw Error(join_text("cannot ", doing, " ", path, ": ", std::generic_category().message(code)));
}

}  // namespace

MappedOutput::MappedOutput(std::string path, int fd, std::byte* data, size_t size)
    : path_(std::move(path)), fd_(fd), data_(data), size_(size) {}

MappedOutput::~MappedOutput() {
  if (data_ != nullptr) ::munmap(data_, size_);
  ::close(fd_);
}

void MappedOutput::create(const std::filesystem::path& path, uint64_t size) {
  const std::string name = path.string();
  const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) fail("create", name, errno);
  const int failed = size > 0 ? ::posix_fallocate(fd, 0, static_cast<off_t>(size)) : 0;
  ::close(fd);
  if (failed != 0) fail("reserve space for", name, failed);
}

std::shared_ptr<MappedOutput> MappedOutput::open(const std::filesystem::path& path) {
  const std::string name = path.string();
  const int fd = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) fail("open", name, errno);
  struct stat status {};
  const int failed = ::fstat(fd, &status) != 0 ? errno : 0;
  const auto size = static_cast<size_t>(status.st_size);
  void* data = nullptr;
  if (failed == 0 && size > 0) {
    data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (failed != 0 || data == MAP_FAILED) {
    const int code = failed != 0 ? failed : errno;
    ::close(fd);
    fail("map", name, code);
  }
  return std::shared_ptr<MappedOutput>(
      new MappedOutput(name, fd, static_cast<std::byte*>(data), size));
}

void MappedOutput::sync() {
  if (data_ != nullptr && ::msync(data_, size_, MS_SYNC) != 0) fail("sync", path_, errno);
  if (::fsync(fd_) != 0) fail("sync", path_, errno);
}

}  // namespace tessera::files
