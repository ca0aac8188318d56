#include "cli/choose_shardings.h"

#include <cmath>

#include "cli/plan_argument.h"
#include "tessera/base/errors.h"
#include "tessera/partition/graph/replace_writes.h"
#include "tessera/program/verify.h"

namespace tessera::cli {
namespace {

/// Bytes of all tensors of a program, tied ones once.
int64_t bytes_of_weights(const program::Archive& archive, const program::ExportedProgram& program) {
  std::map<std::string, int64_t> records;
  for (const auto& payload : program.weights) {
    records["w" + payload.path_name] =
        static_cast<int64_t>(archive.bytes_of_weight(payload).size());
  }
  for (const auto& payload : program.constants) {
    records["c" + payload.path_name] =
        static_cast<int64_t>(archive.bytes_of_constant(payload).size());
  }
  int64_t sum = 0;
  for (const auto& [name, bytes] : records) sum += bytes;
  return sum;
}

}  // namespace

int64_t parse_memory(const std::string& text, int64_t whole) {
  size_t used = 0;
  double number = 0;
  try {
    number = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  const std::string unit = text.substr(std::min(used, text.size()));
  constexpr std::string_view kUnits = "KMGT";
  double scale = 0;
  if (unit.empty() || unit == "B") scale = 1;
  if (unit == "%") scale = static_cast<double>(whole) / 100;
  const size_t power = unit.empty() ? std::string::npos : kUnits.find(unit[0]);
  const std::string rest = unit.empty() ? "" : unit.substr(1);
  if (power != std::string::npos && (rest.empty() || rest == "B" || rest == "iB")) {
    scale = std::pow(1024.0, static_cast<double>(power + 1));
  }
  const double bytes = number * scale;
  require(used > 0 && scale > 0 && bytes >= 0 && bytes < 9e18, "--memory ", text,
          " is not a number of bytes: write 64M, 1.5G, 2000000 or 30%");
  return static_cast<int64_t>(bytes);
}

ChosenShardings choose_shardings(const ShardingOptions& options) {
  partition::Plan plan = read_plan(options.plan);
  const DeviceMesh mesh = DeviceMesh::parse(options.mesh);
  auto archive = program::Archive::open(options.program);
  program::ExportedProgram program = archive->read_program();
  program::verify(program, archive->path());
  partition::replace_writes(program);
  partition::PropagateOptions choose;
  if (!options.memory.empty()) {
    choose.weight_limit = parse_memory(options.memory, bytes_of_weights(*archive, program));
  }
  const partition::RewriteOptions rewrite{.machine = cost::default_machine(mesh.device())};
  if (options.plan != "auto") {
    auto assignment = partition::propagate(program, mesh, plan, choose);
    return {{std::move(archive), std::move(program), std::move(assignment), rewrite}, {}};
  }
  auto found = partition::auto_plan(program, mesh, {}, {.choose = choose});
  auto assignment = found.assignment;
  return {{std::move(archive), std::move(program), std::move(assignment), rewrite},
          std::move(found)};
}

}  // namespace tessera::cli
