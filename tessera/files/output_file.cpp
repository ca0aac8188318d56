#include "tessera/files/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "tessera/base/errors.h"

namespace tessera::files {
namespace {

constexpr size_t kBuffer = size_t{1} << 20;
constexpr uint64_t kWriteBack = uint64_t{16} << 20;

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path, Options options)
    : path_(path.string()), options_(options), buffer_(new std::byte[kBuffer]) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("create");
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::fail(std::string_view doing) const {
  throw Error(
      join_text("cannot ", doing, " ", path_, ": ", std::generic_category().message(errno)));
}

void OutputFile::write(std::span<const std::byte> bytes) {
  position_ += bytes.size();
  if (options_.sums != nullptr) options_.sums->add(bytes);
  if (bytes.size() > kBuffer - buffered_) flush();
  if (bytes.size() >= kBuffer) return write_out(bytes);
  if (bytes.empty()) return;
  std::memcpy(buffer_.get() + buffered_, bytes.data(), bytes.size());
  buffered_ += bytes.size();
}

void OutputFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

uint64_t OutputFile::skip(uint64_t bytes) {
  ensure(options_.sums == nullptr, "checksums of a file need its bytes in order");
  flush();
  if (::lseek(fd_, static_cast<off_t>(bytes), SEEK_CUR) < 0) fail("write");
  const uint64_t start = position_;
  position_ += bytes;
  return start;
}

void OutputFile::write_at(uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      fail("write");
    }
    offset += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void OutputFile::flush() {
  write_out({buffer_.get(), buffered_});
  buffered_ = 0;
}

void OutputFile::write_out(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail("write");
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
    if (options_.early_write_back) start_write_back(static_cast<uint64_t>(written));
  }
}

void OutputFile::start_write_back(uint64_t bytes) {
  written_ += bytes;
  if (written_ - started_ < kWriteBack) return;
  // Returns at once; where the file system does not know it, the sync does all of the work.
  ::sync_file_range(fd_, static_cast<off_t>(started_), static_cast<off_t>(written_ - started_),
                    SYNC_FILE_RANGE_WRITE);
  started_ = written_;
}

void OutputFile::close(CloseOptions options) {
  flush();
  if (options.sync && ::fsync(fd_) != 0) fail("sync");
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) fail("close");  // network file systems report a full disk here
}

}  // namespace tessera::files
