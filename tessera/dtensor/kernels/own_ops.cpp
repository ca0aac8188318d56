#include "tessera/dtensor/kernels/own_ops.h"

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/decide/decision.h"
#include "tessera/dtensor/kernels/register.h"
#include "tessera/rules/registry/registry.h"

namespace tessera {
namespace {

void check_name(std::string_view op) {
  const size_t colons = op.find("::");
  require(colons != std::string_view::npos && colons > 0 && colons + 2 < op.size(), "'", op,
          "' names no op; write library::name or library::name.overload");
}

}  // namespace

void register_rule(std::string_view op, std::string_view notation) {
  check_name(op);
  rules::register_rule(op, notation);
  dtensor::claim(op);
  dtensor::clear_decisions();
}

void register_rule(rules::Rule rule) {
  const std::string op = rule.op;
  check_name(op);
  require(rule.rows || rule.joint || rule.decide, "register_rule of ", op, " without rows");
  rules::register_rule(std::move(rule));
  dtensor::claim(op);
  dtensor::clear_decisions();
}

void register_kernel(std::string_view name, RunRow kernel, KernelComm comm, KernelRows rows) {
  require(!name.empty() && kernel != nullptr, "register_kernel of '", name,
          "' without a name or a kernel");
  dtensor::add_row_kernel(name, std::move(kernel), comm, std::move(rows));
}

}  // namespace tessera
