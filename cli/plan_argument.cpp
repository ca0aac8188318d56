#include "cli/plan_argument.h"

#include "tessera/files/mapped_file.h"

namespace tessera::cli {

partition::Plan read_plan(const std::string& value) {
  if (value == "auto") {
    partition::Plan plan;
    plan.rest_auto = true;
    return plan;
  }
  const auto file = files::MappedFile::open(value);
  const auto bytes = file->bytes();
  return partition::Plan::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                file->path());
}

}  // namespace tessera::cli
