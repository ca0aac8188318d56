#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/plan/plan.h"
#include "tessera/rules/choice/choose.h"
#include "tessera/rules/code/code_rules.h"

/// Ops that reduce whole tensors to numbers which the program reads.
///
///   item, the update of a loss scale   need whole values
///   equal                              both tensors as the first is; parts are compared and the
///                                      answers combined. Different shapes need no comparison
///   norms of a list                    shards stay; the sums of powers are combined
///   unscaling of gradients             shards stay; whether one is not finite is combined
namespace tessera::rules {
namespace {

constexpr std::string_view kEqual = "equal";
constexpr std::string_view kNorms = "foreach_norm";
constexpr std::string_view kUnscale = "unscale";

void place(Choice& choice, const Sharding& from, const Sharding& to) {
  choice.operands.push_back(to);
  if (!from.defined() || from == to) return;
  const auto plan = plan::cached_plan(from, to);
  choice.seconds += plan->seconds();
  choice.bytes += plan->bytes();
}

/// Whether ranks hold different parts.
bool is_spread(const Sharding& sharding) {
  for (int axis = 0; sharding.defined() && axis < sharding.mesh().ndim(); ++axis) {
    if (sharding.placement(axis).is_sharded() && sharding.mesh().size(axis) > 1) return true;
  }
  return false;
}

/// Names the kernel; it combines `bytes` if parts differ.
void use_kernel(Choice& choice, const EnabledKernel& kernel, int64_t bytes) {
  choice.kernel = kernel.name;
  if (!std::ranges::any_of(choice.operands, is_spread)) return;
  choice.comm = kernel.comm;
  choice.bytes += 2 * bytes;  // an all_reduce
}

Choice decide_whole(const OpCall& call) {
  Choice choice;
  for (const Sharding& s : call.operands()) {
    place(choice, s, s.defined() ? s.replicated() : s);
  }
  choice.results.emplace_back(static_cast<size_t>(call.mesh.ndim()));
  return choice;
}

Choice decide_equal(const OpCall& call) {
  const EnabledKernel* kernel = find_kernel(kEqual);
  if (kernel == nullptr) return decide_whole(call);
  const auto operands = call.operands();
  const Sharding& a = operands[0];
  const Sharding& b = operands[1];
  Choice choice;
  choice.results.emplace_back(static_cast<size_t>(call.mesh.ndim()));
  if (!std::ranges::equal(a.shape(), b.shape()) || a.dtype() != b.dtype()) {
    choice.operands = operands;
    choice.kernel = kernel->name;
    return choice;
  }
  const Sharding common = a.has_partial() ? a.replicated() : a;
  place(choice, a, common);
  place(choice, b,
        b.with_placements({common.placements().begin(), common.placements().end()},
                          common.has_default_order() ? std::vector<int>() : common.order()));
  use_kernel(choice, *kernel, dtype_bytes(DType::i32));
  return choice;
}

/// Partial values are reduced: the norm of a sum is not the sum of norms.
Sharding reduced(const Sharding& s) {
  if (!s.has_partial()) return s;
  std::vector<Placement> placements(s.placements().begin(), s.placements().end());
  for (Placement& p : placements) p = p.is_partial() ? Replicate() : p;
  return s.with_placements(std::move(placements), s.order());
}

Choice decide_norms(const OpCall& call) {
  const EnabledKernel* kernel = find_kernel(kNorms);
  Choice choice;
  for (const Sharding& s : call.operands()) {
    place(choice, s, kernel == nullptr ? s.replicated() : reduced(s));
    choice.results.emplace_back(static_cast<size_t>(call.mesh.ndim()));
  }
  if (kernel != nullptr && std::ranges::any_of(choice.operands, is_spread)) {
    use_kernel(choice, *kernel, std::ssize(choice.operands) * dtype_bytes(DType::f32));
  }
  return choice;
}

/// Gradients in place; found_inf and inv_scale are the same number on all ranks.
Choice decide_unscale(const OpCall& call) {
  const EnabledKernel* kernel = find_kernel(kUnscale);
  Choice choice;
  for (const NamedArg& arg : call.args) {
    if (const auto* gradients = std::get_if<std::vector<Sharding>>(&arg.value)) {
      for (const Sharding& s : *gradients) {
        require(!s.has_partial(), call.op, ": gradient ", choice.operands.size(), " is ", s,
                ": its addends may be finite where it is not; redistribute it first");
        place(choice, s, kernel == nullptr ? s.replicated() : s);
      }
    } else if (const auto* number = std::get_if<Sharding>(&arg.value)) {
      require(number->is_replicated(), call.op, ": ", arg.name, " is ", *number,
              "; it must be replicated: redistribute it, or use a plain tensor of one element");
      place(choice, *number, *number);
    }
  }
  if (kernel != nullptr) use_kernel(choice, *kernel, dtype_bytes(DType::f32));
  return choice;
}

Rule read_rule(std::string op, std::string text, Choice (*decide)(const OpCall&)) {
  Rule rule;
  rule.op = std::move(op);
  rule.text = std::move(text);
  rule.decide = decide;
  return rule;
}

}  // namespace

std::vector<Rule> read_rules() {
  Rule norms = read_rule("aten::_foreach_norm.Scalar", "code: as they are; kernel foreach_norm",
                         decide_norms);
  norms.result_count = -1;
  norms.infer = [](const OpCall& call) {
    std::vector<ResultMeta> out;
    for (const Sharding& s : call.operands()) out.push_back({{}, {}, s.dtype()});
    return out;
  };
  Rule unscale = read_rule("aten::_amp_foreach_non_finite_check_and_unscale_",
                           "code: as they are; kernel unscale", decide_unscale);
  unscale.result_count = 0;
  unscale.in_place = true;
  Rule update = read_rule("aten::_amp_update_scale_", "code: whole", decide_whole);
  update.in_place = true;
  return {read_rule("aten::_local_scalar_dense", "code: whole", decide_whole),
          read_rule("aten::equal", "code: both as the first is; kernel equal", decide_equal),
          std::move(norms), std::move(unscale), std::move(update)};
}

}  // namespace tessera::rules
