#include "tessera/files/block_writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <new>

namespace tessera::files {
namespace {

/// Of memory, offset and length of a direct write; no less than any usual device asks for.
constexpr size_t kAlignment = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr uint64_t kWriteBack = uint64_t{16} << 20;

}  // namespace

void BlockWriter::Free::operator()(std::byte* block) const { std::free(block); }

BlockWriter::BlockWriter(int fd) : fd_(fd), sizes_(kBlocks, 0) {
  for (size_t i = 0; i < kBlocks; ++i) {
    auto* block = static_cast<std::byte*>(std::aligned_alloc(kHugePage, kBlock));
    if (block == nullptr) throw std::bad_alloc();
    blocks_.emplace_back(block);
    ::madvise(block, kBlock, MADV_HUGEPAGE);  // fewer page faults, fewer segments for the device
  }
}

BlockWriter::~BlockWriter() { stop(); }

std::span<std::byte> BlockWriter::block() { return {blocks_[appended_ % kBlocks].get(), kBlock}; }

int BlockWriter::append(size_t bytes) {
  if (!thread_.joinable()) {
    set_direct(true);
    thread_ = std::thread([this] { run(); });
  }
  std::unique_lock lock(mutex_);
  sizes_[appended_ % kBlocks] = bytes;
  ++appended_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return appended_ - written_ < kBlocks; });
  return error_;
}

int BlockWriter::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return appended_ == written_; });
  return error_;
}

void BlockWriter::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BlockWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || written_ < appended_; });
    if (stopping_) return;
    const size_t i = written_ % kBlocks;
    if (error_ == 0) {
      lock.unlock();
      const int error = write_out({blocks_[i].get(), sizes_[i]});
      lock.lock();
      error_ = error;
    }
    ++written_;
    changed_.notify_all();
  }
}

int BlockWriter::write_out(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t count = direct_ ? bytes.size() - bytes.size() % kAlignment : bytes.size();
    if (count == 0) {  // the end of the file
      set_direct(false);
      continue;
    }
    const ssize_t written = ::write(fd_, bytes.data(), count);
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno != EINVAL || !direct_) return errno;
      set_direct(false);
      continue;
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
    start_write_back(static_cast<uint64_t>(written));
  }
  return 0;
}

void BlockWriter::set_direct(bool direct) {
  const int flags = ::fcntl(fd_, F_GETFL);
  const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
  direct_ = ::fcntl(fd_, F_SETFL, wanted) == 0 && direct;
}

void BlockWriter::start_write_back(uint64_t bytes) {
  position_ += bytes;
  if (direct_ || position_ - started_ < kWriteBack) return;
  // Returns at once; where the file system does not know it, the sync does all of the work.
  ::sync_file_range(fd_, static_cast<off_t>(started_), static_cast<off_t>(position_ - started_),
                    SYNC_FILE_RANGE_WRITE);
  started_ = position_;
}

}  // namespace tessera::files
