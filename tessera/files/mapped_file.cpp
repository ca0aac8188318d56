#include "tessera/files/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "tessera/base/errors.h"

namespace tessera::files {

MappedFile::MappedFile(std::shared_ptr<const InputFile> file, std::byte* data)
    : file_(std::move(file)), data_(data), size_(file_->size()) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  auto file = InputFile::open(path);
  void* data = nullptr;
  if (file->size() > 0) {  // mmap rejects a length of zero
    data = ::mmap(nullptr, file->size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                  file->descriptor(), 0);
    require(data != MAP_FAILED, "cannot map ", file->path(), ": ",
            [] { return std::generic_category().message(errno); });
  }
  return std::shared_ptr<const MappedFile>(
      new MappedFile(std::move(file), static_cast<std::byte*>(data)));
}

void MappedFile::read(std::span<const std::byte> part, std::byte* to) const {
  file_->read(static_cast<uint64_t>(part.data() - data_), {to, part.size()});
}

}  // namespace tessera::files
