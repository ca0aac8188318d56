#include "tessera/files/description_file.h"

#include <algorithm>
#include <system_error>

#include "tessera/base/errors.h"

namespace tessera::files {

namespace fs = std::filesystem;

std::vector<std::byte> read_whole(const InputFile& file, uint64_t most) {
  require(file.size() <= most, file.path(), " has ", file.size(), " bytes, of which at most ", most,
          " are plausible: it is damaged, or not of this directory");
  std::vector<std::byte> out(file.size());
  file.read(0, out);
  return out;
}

uint64_t most_description_bytes(const fs::path& file) {
  constexpr uint64_t kAlways = uint64_t{64} << 20;
  constexpr uint64_t kMost = uint64_t{2} << 30;
  uint64_t most = kAlways;
  std::error_code none;
  const fs::path parent = file.has_parent_path() ? file.parent_path() : fs::path(".");
  for (const auto& other : fs::directory_iterator(parent, none)) {
    if (other.path().filename() == file.filename()) continue;
    const uint64_t size = other.is_regular_file(none) ? other.file_size(none) : 0;
    most += none ? 0 : std::min(size, kMost);
  }
  return std::min(most, kMost);
}

}  // namespace tessera::files
