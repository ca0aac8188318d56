#include <c10/util/Exception.h>

#include <mutex>
#include <set>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/policy.h"
#include "tessera/observe/call_site.h"
#include "tessera/plan/plan.h"

namespace tessera::dtensor {
namespace {

/// The redistributions of a decision, as a suggestion for the error: "redistribute operand 1 (S0 ->
/// R, 4 KiB)".
struct Moved {
  std::string text;
  int64_t bytes = 0;
};

void add_move(Moved& out, size_t operand, const Sharding& from, const Sharding& to) {
  const auto plan = plan::cached_plan(from, to);
  if (!plan->communicates()) return;
  if (!out.text.empty()) out.text += ", ";
  out.text += join_text("tensor ", operand, ": redistribute(x, mesh, {", to.placements_text(),
                        "}) from ", from, ", ", bytes_text(plan->bytes()), " a rank");
  out.bytes += plan->bytes();
}

Moved what_moves(const Decision& decision, std::span<const Operand> operands, bool is_out) {
  Moved out;
  for (size_t i = 0; i < operands.size(); ++i) {
    const ShardedMeta* meta = operands[i].sharded;
    const Sharding& target = decision.operands[i];
    if (meta == nullptr || !target.defined() || target == meta->sharding()) continue;
    if (target.mesh() != meta->sharding().mesh()) {
      add_move(out, i, meta->sharding(), meta->sharding().replicated());
      continue;
    }
    const bool written = std::ranges::find(decision.write_back, i) != decision.write_back.end();
    if (!written || !is_out) {
      add_move(out, i, meta->sharding(), target);
    }
    if (written) add_move(out, i, target, meta->sharding());
  }
  return out;
}

/// True once per op and process.
bool first_time(const std::string& op) {
  static auto* mutex = new std::mutex();
  static auto* said = new std::set<std::string>();
  std::lock_guard lock(*mutex);
  return said->insert(op).second;
}

constexpr std::string_view kForbidden =
    ". Implicit redistribution occurred, which is forbidden here, write it: ";

/// Runs before each collective whose call site is marked implicit. Ops that know in advance what
/// they will send check the policy themselves, with a better message; this covers the others.
void refuse_or_warn(const comm::CallSiteFields& site) {
  if (CommPolicy::current() == ImplicitComm::allow) return;
  const std::string said = join_text(site.op, " communicates");
  if (CommPolicy::current() == ImplicitComm::forbid) {
    throw NotSupported(join_text(said, kForbidden,
                                 "redistribute its operands, or allow it here by "
                                 "CommPolicy(ImplicitComm::allow)"));
  }
  if (first_time(std::string(site.op))) TORCH_WARN(said);
}

}  // namespace

void install_policy() { comm::set_implicit_check(refuse_or_warn); }

void check_reduction(const OpEntry& entry, const Sharding& sharding) {
  const ImplicitComm policy = CommPolicy::current();
  if (policy == ImplicitComm::allow) return;
  bool alone = true;
  for (int axis = 0; axis < sharding.mesh().ndim(); ++axis) {
    alone = alone && (sharding.placement(axis).is_replicate() || sharding.mesh().size(axis) == 1);
  }
  if (alone) return;
  const std::string said = join_text(entry.name, " of ", sharding, " combines the ranks' results");
  if (policy == ImplicitComm::forbid) {
    throw NotSupported(join_text(said, kForbidden, "redistribute(x, mesh, {",
                                 sharding.replicated().placements_text(), "})"));
  }
  if (first_time(entry.name)) TORCH_WARN(said);
}

void check_policy(const OpEntry& entry, const Decision& decision, const Stack& stack) {
  if (decision.comm == rules::KernelComm::combine) {
    for (const Sharding& operand : decision.operands) {
      if (operand.defined()) check_reduction(entry, operand);
    }
  }
  if (!decision.moves) return;
  const ImplicitComm policy = CommPolicy::current();
  const bool strict = decision.lacks_rule && StrictRules::current();
  const bool warns = decision.lacks_rule && !decision.warned.load(std::memory_order_relaxed);
  if (policy == ImplicitComm::allow && !strict && !warns) return;
  const Moved moved = what_moves(decision, operands_of(entry, stack), entry.is_out);
  decision.warned.store(true, std::memory_order_relaxed);
  if (moved.text.empty()) return;
  if (strict) {
    throw NotSupported(join_text(entry.name,
                                 " has no sharding rule and would run on replicated "
                                 "inputs; register_rule gives it one, or write: ",
                                 moved.text));
  }
  if (policy == ImplicitComm::forbid) {
    throw NotSupported(join_text(entry.name, " would communicate ", bytes_text(moved.bytes),
                                 " a rank", kForbidden, moved.text));
  }
  const std::string said =
      decision.lacks_rule
          ? join_text(entry.name, " has no sharding rule: it runs on replicated inputs (",
                      moved.text, ")")
          : join_text(entry.name, " communicates: ", moved.text);
  if (policy == ImplicitComm::warn || decision.lacks_rule) {
    if (first_time(entry.name)) TORCH_WARN(said);
  }
}

}  // namespace tessera::dtensor
