#include "tessera/files/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "tessera/base/errors.h"

namespace tessera::files {
namespace {

constexpr size_t kBuffer = size_t{1} << 20;

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path, Options options)
    : path_(path.string()),
      options_(options),
      buffer_(options.direct ? nullptr : new std::byte[kBuffer]) {
  const int truncate = options.keep_blocks ? 0 : O_TRUNC;
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | truncate | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("create");
}

OutputFile::~OutputFile() {
  blocks_.reset();
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::fail(std::string_view doing) const {
  throw Error(
      join_text("cannot ", doing, " ", path_, ": ", std::generic_category().message(errno)));
}

void OutputFile::write(std::span<const std::byte> bytes) {
  position_ += bytes.size();
  if (options_.sums != nullptr) options_.sums->add(bytes);
  if (options_.direct) return fill_blocks(bytes);
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
  ensure(!options_.direct, "blocks of a file need its bytes in order");
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

void OutputFile::fill_blocks(std::span<const std::byte> bytes) {
  if (blocks_ == nullptr) blocks_ = std::make_unique<BlockWriter>(fd_);
  while (!bytes.empty()) {
    const auto space = blocks_->block().subspan(buffered_);
    const auto part = bytes.first(std::min(bytes.size(), space.size()));
    std::memcpy(space.data(), part.data(), part.size());
    buffered_ += part.size();
    bytes = bytes.subspan(part.size());
    if (buffered_ == BlockWriter::kBlock) append_block();
  }
}

void OutputFile::append_block() {
  const int error = blocks_->append(buffered_);
  buffered_ = 0;
  if (error == 0) return;
  errno = error;
  fail("write");
}

void OutputFile::flush() {
  if (blocks_ == nullptr || position_ < BlockWriter::kBlock) {  // less than a block: no thread
    write_out({blocks_ == nullptr ? buffer_.get() : blocks_->block().data(), buffered_});
    buffered_ = 0;
    return;
  }
  if (buffered_ > 0) append_block();
  errno = blocks_->finish();
  if (errno != 0) fail("write");
}

void OutputFile::write_out(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail("write");
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void OutputFile::close(CloseOptions options) {
  flush();
  if (options_.keep_blocks && ::ftruncate(fd_, static_cast<off_t>(position_)) != 0) {
    fail("truncate");
  }
  if (options.sync && ::fsync(fd_) != 0) fail("sync");
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) fail("close");  // network file systems report a full disk here
}

}  // namespace tessera::files
