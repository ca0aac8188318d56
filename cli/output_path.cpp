#include "cli/output_path.h"

#include "tessera/base/errors.h"

namespace tessera::cli {

namespace fs = std::filesystem;

void check_output_directory(const fs::path& file) {
  const fs::path directory = file.has_parent_path() ? file.parent_path() : fs::path(".");
  require(fs::is_directory(directory), "cannot write ", file.string(), ": there is no directory ",
          directory.string());
  require(!fs::is_directory(file), "cannot write ", file.string(), ": it is a directory");
}

void check_replaceable(const fs::path& file) {
  check_output_directory(file);
  require(!fs::exists(file) || fs::is_regular_file(file), "cannot write ", file.string(),
          ": it exists and is not a regular file");
}

}  // namespace tessera::cli
