#include "tessera/partition/graph/random_ops.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "tessera/base/errors.h"

namespace tessera::partition {
namespace {

using program::ArgKind;

/// Whether an argument is there and neither false nor 0.
bool is_set(const program::Node& node, std::string_view name) {
  const auto* arg = node.find(name);
  if (arg == nullptr) return false;
  if (arg->kind == ArgKind::boolean) return arg->as<bool>();
  if (arg->kind == ArgKind::floating) return arg->as<double>() != 0;
  if (arg->kind == ArgKind::integer) return arg->as<int64_t>() != 0;
  return false;
}

bool draws(const program::Node& node) {
  constexpr std::array<std::string_view, 21> kAlways = {
      "rand",        "randn",     "randint",      "randperm",     "rand_like",   "randn_like",
      "multinomial", "bernoulli", "bernoulli_",   "randint_like", "normal",      "normal_",
      "uniform_",    "random_",   "exponential_", "geometric_",   "log_normal_", "cauchy_",
      "poisson",     "binomial",  "uniform"};
  auto [name, overload] = node.op_name();
  const size_t colon = name.rfind(':');
  const std::string_view op =
      std::string_view(name).substr(colon == std::string::npos ? 0 : colon + 1);
  if (std::ranges::find(kAlways, op) != kAlways.end()) return true;
  if (op.find("dropout") != std::string_view::npos || op.find("rrelu") != std::string_view::npos)
    return is_set(node, "train") || is_set(node, "training");
  return op.find("attention") != std::string_view::npos && is_set(node, "dropout_p");
}

}  // namespace

void require_no_random_ops(const program::ExportedProgram& program) {
  for (const auto& node : program.graph.nodes) {
    if (!draws(node)) continue;
    throw NotSupported(join_text("node ", node.name.value_or("?"), ", ", node.target,
                                 ", draws random numbers, which would differ from rank to rank; "
                                 "export the model after eval(), or give what is drawn as an "
                                 "input"));
  }
}

}  // namespace tessera::partition
