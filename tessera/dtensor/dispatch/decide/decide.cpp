#include "tessera/dtensor/dispatch/decide/decide.h"

#include <algorithm>
#include <limits>
#include <map>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/decide/number_use.h"
#include "tessera/dtensor/dispatch/decide/row_kernel.h"
#include "tessera/dtensor/dispatch/decide/rule_args.h"
#include "tessera/dtensor/dispatch/decide/sequential_random_ops.h"
#include "tessera/dtensor/tensor/overlap.h"
#include "tessera/plan/plan.h"
#include "tessera/rules/choice/choose.h"
#include "tessera/rules/registry/registry.h"

namespace tessera::dtensor {

namespace {

bool holds_all(const DeviceMesh& mesh, const DeviceMesh& ranks_of) {
  return std::ranges::all_of(ranks_of.ranks(),
                             [&](int rank) { return mesh.coordinate_of(rank).has_value(); });
}

/// Whether a tensor of another mesh may take part in an op on `mesh`. Only if every rank of `mesh`
/// holds it as one number: a loss, a norm, a scale, which then acts as a plain number. If it must
/// be reduced first, `mesh` must contain all ranks of its own mesh. The step count of a fused
/// optimizer may be on any mesh that contains this rank: all ranks count equally.
bool may_take_part(const OpEntry& entry, const Operand& operand, const DeviceMesh& mesh) {
  const Sharding& sharding = operand.sharded->sharding();
  if (entry.name.starts_with("aten::_fused_") && !operand.written && sharding.numel() == 1 &&
      sharding.is_replicated() && sharding.mesh().contains_me()) {
    return true;
  }
  if (operand.written || sharding.numel() != 1 || !holds_all(sharding.mesh(), mesh)) return false;
  return sharding.is_replicated() || holds_all(mesh, sharding.mesh());
}

/// The mesh that an op runs on: that of what it writes to, else that of its tensors of more than
/// one element, else one whose ranks hold all its operands.
DeviceMesh mesh_of_op(const OpEntry& entry, std::span<const Operand> operands) {
  const auto decides = [](const Operand& o, int round) {
    return round == 0 ? o.written : round == 1 ? o.tensor->numel() != 1 : true;
  };
  const Operand* stranger = nullptr;
  DeviceMesh first;
  for (int round = 0; round < 3; ++round) {
    for (const auto& candidate : operands) {
      if (candidate.sharded == nullptr || !decides(candidate, round)) continue;
      const DeviceMesh& mesh = candidate.sharded->sharding().mesh();
      if (!first.defined()) first = mesh;
      const auto fits = [&](const Operand& o) {
        return o.sharded == nullptr || o.sharded->sharding().mesh() == mesh ||
               may_take_part(entry, o, mesh);
      };
      const auto misfit = std::ranges::find_if_not(operands, fits);
      if (misfit == operands.end()) return mesh;
      if (stranger == nullptr) stranger = &*misfit;
      if (round < 2) break;  // what is written, or large, is not moved to another mesh
    }
    if (stranger != nullptr && round < 2) break;
  }
  ensure(stranger != nullptr, "an op without sharded tensors reached the sharded kernel");
  throw InvalidArgument(join_text(
      entry.name, ": tensors of two meshes, ", first, " and ", stranger->sharded->sharding().mesh(),
      "; redistribute one to the other's mesh. Only a tensor of one element that all ranks of the "
      "other mesh hold may come from elsewhere. Operands: ",
      operands_text(operands)));
}

/// Replicates every operand; the metadata comes from the local results.
void replicate_all(std::span<const Operand> operands, Decision& decision) {
  decision.replicates = true;
  for (size_t i = 0; i < operands.size(); ++i) {
    const ShardedMeta* meta = operands[i].sharded;
    if (meta == nullptr) continue;
    decision.operands[i] = meta->sharding().replicated();
  }
}

std::vector<Sharding> result_shardings(const rules::Choice& choice, const DeviceMesh& mesh,
                                       std::span<const std::optional<rules::ResultMeta>> metas) {
  std::vector<Sharding> out(metas.size());
  for (size_t r = 0; r < metas.size() && r < choice.results.size(); ++r) {
    if (!metas[r]) continue;
    out[r] =
        Sharding(mesh, choice.results[r], metas[r]->shape,
                 {.dtype = metas[r]->dtype, .stride = metas[r]->stride, .order = choice.order});
  }
  return out;
}

std::vector<OpenResult> open_results(const rules::Choice& choice,
                                     std::span<const std::optional<rules::ResultMeta>> metas) {
  std::vector<OpenResult> out;
  for (size_t r = 0; r < metas.size() && r < choice.results.size(); ++r) {
    out.push_back({choice.results[r], metas[r]->shape, choice.order});
  }
  return out;
}

/// Describes all results for a rank outside the mesh, which has no local ones: those that a rule
/// leaves open, or of which it only knows the shape, and those of replicated operands.
void complete_results(std::span<const std::optional<rules::ResultMeta>> metas, Decision& decision) {
  if (metas.size() > decision.results.size()) decision.results.resize(metas.size());
  for (size_t r = 0; r < metas.size(); ++r) {
    if (!metas[r]) continue;
    Sharding& result = decision.results[r];
    const std::vector<Placement> replicated(static_cast<size_t>(decision.mesh.ndim()));
    const Sharding whole(decision.mesh, replicated, metas[r]->shape,
                         {.dtype = metas[r]->dtype, .stride = metas[r]->stride});
    if (result.defined()) {
      result = whole.with_placements({result.placements().begin(), result.placements().end()},
                                     result.order());
    } else if (r < decision.open.size()) {
      result = whole.with_placements(decision.open[r].placements, decision.open[r].order);
    } else {
      result = whole;
    }
  }
}

/// A plain tensor that the op writes to cannot hold a shard.
void refuse_plain_part(const OpEntry& entry, const Operand& operand, const Sharding& needed) {
  require(operand.sharded != nullptr || !operand.tensor->defined() || !needed.defined() ||
              needed.is_replicated(),
          entry.name, " writes to a plain tensor of shape ", shape_text(operand.tensor->sizes()),
          " what each rank knows a part of; distribute it");
}

/// What is written keeps its placements: results with others are redistributed back. All errors of
/// that are raised here, before anything has been changed.
void find_write_back(const OpEntry& entry, std::span<const Operand> operands, Decision& decision,
                     std::span<const std::optional<rules::ResultMeta>> metas) {
  size_t result = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    const ShardedMeta* meta = operands[i].sharded;
    if (operands[i].hidden) refuse_plain_part(entry, operands[i], decision.operands[i]);
    if ((!operands[i].written && !operands[i].hidden) || meta == nullptr) continue;
    const Sharding& original = meta->sharding();
    const size_t r = operands[i].written ? result++ : metas.size();
    if (entry.is_out && r < metas.size() && metas[r]) {
      require(std::ranges::equal(metas[r]->shape, original.shape()), entry.name, ": the result is ",
              shape_text(metas[r]->shape), ", the tensor to write it to is ", original,
              "; a sharded tensor is not resized, give one of that shape");
    }
    const Sharding& needed = decision.operands[i];
    if (!needed.defined() || needed == original) continue;
    plan::cached_plan(needed, original);  // throws if there is no plan back
    decision.write_back.push_back(i);
  }
}

bool is_drawn_in_order(const c10::OperatorHandle& op, const rules::OpCall& call) {
  if (const rules::Arg* dropped = call.find("dropout_p")) {
    if (const auto* number = std::get_if<rules::Number>(dropped)) {
      return draws_in_order(op, number->to_bool());
    }
  }
  return draws_in_order(op, std::nullopt);
}

bool has_empty(std::span<const Operand> operands) {
  return std::ranges::any_of(operands, [](const Operand& operand) {
    return operand.tensor->defined() && operand.tensor->numel() == 0;
  });
}

/// The arguments for the local call: of the op itself, or of its replacement.
void localise(const rules::Rule& rule, const rules::OpCall& call, Decision& decision) {
  std::map<std::string, c10::IValue> by_name;
  for (const auto& local : rule.localise) {
    by_name[local.name] = to_ivalue(local.value(call, decision.operands, decision.results));
  }
  const auto place_of = [&](const std::string& name) {
    const auto arg = std::ranges::find(call.args, name, &rules::NamedArg::name);
    return arg == call.args.end() ? -1 : static_cast<int>(arg - call.args.begin());
  };
  if (rule.instead.empty()) {
    for (const auto& [name, value] : by_name) {
      ensure(place_of(name) >= 0, "a rule localises an argument that the op does not have");
      decision.local_args.emplace_back(place_of(name), value);
    }
    return;
  }
  const size_t dot = rule.instead.find('.');
  const std::string overload = dot == std::string::npos ? "" : rule.instead.substr(dot + 1);
  Replacement made{c10::Dispatcher::singleton().findSchemaOrThrow(
                       rule.instead.substr(0, dot).c_str(), overload.c_str()),
                   {}};
  for (const auto& arg : made.op.schema().arguments()) {
    if (const auto known = by_name.find(arg.name()); known != by_name.end()) {
      made.args.emplace_back(-1, known->second);
    } else if (place_of(arg.name()) >= 0) {
      made.args.emplace_back(place_of(arg.name()), c10::IValue());
    } else {
      ensure(arg.default_value().has_value(), "a replacement lacks an argument");
      made.args.emplace_back(-1, *arg.default_value());
    }
  }
  decision.instead = std::move(made);
}

/// Whether result `index` may be undefined in a direct decision: a gradient that the call does not
/// want, beside others.
bool may_be_undefined(const OpEntry& entry, const Decision& decision, size_t index) {
  const bool has_lists =
      std::ranges::find(entry.result_is_list, true) != entry.result_is_list.end();
  return !entry.is_view && !has_lists && !decision.replicates && entry.result_alias[index] < 0;
}

}  // namespace

void find_if_direct(const OpEntry& entry, Decision& decision) {
  for (size_t r = 0; r < entry.result_alias.size(); ++r) {
    if (r >= decision.results.size() && entry.result_alias[r] < 0) return;
  }
  if (decision.moves || !decision.scale.empty() || !decision.open.empty()) return;
  if (decision.kernel != nullptr || decision.instead || !decision.mesh.contains_me()) return;
  if (!decision.local_args.empty()) {
    const auto& [index, value] = decision.local_args.front();
    if (decision.local_args.size() > 1 || !value.isIntList()) return;
    decision.direct_sizes = {index, value.toIntVector()};
  }
  for (size_t r = 0; r < decision.results.size(); ++r) {
    if (entry.result_alias.empty()) break;  // writes to its lists, and returns nothing
    const Sharding& result = decision.results[r];
    if (!result.defined() && !may_be_undefined(entry, decision, r)) return;
    decision.known.push_back(result.defined() ? KnownResult(result) : KnownResult());
  }
  decision.direct = true;
}

namespace {

/// What is known of the results, and whether some sizes depend on the local run.
struct Known {
  std::vector<std::optional<rules::ResultMeta>> metas;
  bool open = false;
};

/// From the op's Meta kernel, or from its rule.
Known known_results(const rules::Rule& rule, const rules::OpCall& call,
                    std::vector<std::optional<rules::ResultMeta>> metas,
                    std::span<const Operand> operands) {
  // For empty operands, a rule that determines all sizes is more reliable than many Meta kernels.
  if (!metas.empty() && !has_empty(operands)) return {std::move(metas)};
  std::vector<std::optional<rules::ResultMeta>> known;
  if (rule.infer) {
    for (auto& meta : rule.infer(call)) known.emplace_back(std::move(meta));
  }
  for (size_t r = 0; r < known.size() && r < metas.size(); ++r) {
    if (!metas[r]) continue;  // rules describe shapes
    known[r]->dtype = metas[r]->dtype;
    known[r]->guesses_dtype = false;
  }
  const bool open = std::ranges::any_of(
      known, [](const auto& meta) { return std::ranges::count(meta->shape, -1) > 0; });
  if (metas.empty() || (!known.empty() && !open)) return {std::move(known), open};
  return {std::move(metas)};
}

/// Decides by the rule; returns false if it would shard results whose global shapes are unknown.
bool decide_by_rule(const OpEntry& entry, const rules::Rule& rule, rules::OpCall& call,
                    const Known& known, Decision& decision) {
  for (const auto& meta : known.metas) call.results.push_back(meta.value_or(rules::ResultMeta{}));
  const rules::Choice choice = rules::choose(rule, call);
  const bool placed = std::ranges::any_of(choice.results, [](const auto& placements) {
    return std::ranges::any_of(placements, [](const Placement& p) { return !p.is_replicate(); });
  });
  // A sharded result needs its global shape; without one only the replicated choice is safe.
  const bool has_shapes =
      std::ranges::find(entry.result_is_tensor, true) == entry.result_is_tensor.end() ||
      (!known.metas.empty() && (!known.open || rule.localise.empty()));
  const bool can_place = has_shapes || (!placed && choice.kernel.empty());
  if (!can_place && entry.written.empty()) return false;
  if (known.open && !choice.kernel.empty())
    return false;  // a kernel needs the shardings of its results
  decision.operands = choice.operands;
  if (known.open) {
    decision.open = open_results(choice, known.metas);
  } else {
    decision.results = result_shardings(choice, decision.mesh, known.metas);
  }
  if (rule.scale) decision.scale = rule.scale(call, decision.operands);
  if (!choice.kernel.empty()) {
    decision.kernel = find_row_kernel(choice.kernel);
    require(decision.kernel != nullptr, entry.name, ": its rule has rows for a kernel '",
            choice.kernel, "', which was not registered");
    decision.comm = choice.comm;
  }
  localise(rule, call, decision);
  return true;
}

/// Whether the op, or one that writes to the view that it returns, would write to a part of
/// elements that share memory; see tensor/overlap.h.
bool loses_shared_elements(const OpEntry& entry, std::span<const Operand> operands,
                           const Decision& decision) {
  for (size_t i = 0; i < operands.size(); ++i) {
    const bool is_base = entry.is_view && i == 0;
    const bool is_written = operands[i].written || operands[i].hidden || is_base;
    if (operands[i].sharded == nullptr || !is_written) continue;
    const Sharding& own = operands[i].sharded->sharding();
    const Sharding& needed = decision.operands[i];
    if (!needed.defined() || needed == own || !shares_elements(own)) continue;
    if (!can_share_elements(needed, own)) return true;
  }
  return false;
}

/// Whether the op multiplies parts of a sum by an infinite number: add(P, R, alpha=inf) adds R to
/// the part of one rank and zeros to the others, and 0 * inf is NaN.
bool scales_parts_by_infinity(const rules::OpCall& call, const Decision& decision) {
  const auto is_part_of_sum = [](const Placement& placement) {
    return placement.is_partial() &&
           (placement.reduce_op() == ReduceOp::sum || placement.reduce_op() == ReduceOp::avg);
  };
  const bool has_parts = std::ranges::any_of(decision.operands, [&](const Sharding& operand) {
    return operand.defined() && std::ranges::any_of(operand.placements(), is_part_of_sum);
  });
  if (!has_parts) return false;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto is_infinite = [](const rules::Number& number) {
    return number.type() == rules::NumberType::floating &&
           (number.equals(kInfinity) || number.equals(-kInfinity));
  };
  return std::ranges::any_of(call.args, [&](const rules::NamedArg& arg) {
    if (const auto* one = std::get_if<rules::Number>(&arg.value)) return is_infinite(*one);
    const auto* list = std::get_if<std::vector<rules::Number>>(&arg.value);
    return list != nullptr && std::ranges::any_of(*list, is_infinite);
  });
}

/// A decision for the same call that nothing has been decided for.
std::unique_ptr<Decision> undecided(const Decision& decision) {
  auto out = std::make_unique<Decision>();
  out->mesh = decision.mesh;
  out->operands.resize(decision.operands.size());
  out->view_offsets = decision.view_offsets;
  return out;
}

std::vector<int64_t> view_offsets(std::span<const std::optional<rules::ResultMeta>> metas) {
  std::vector<int64_t> out;
  for (const auto& meta : metas) out.push_back(meta ? meta->offset : 0);
  const auto is_zero = [](int64_t offset) { return offset == 0; };
  return std::ranges::all_of(out, is_zero) ? std::vector<int64_t>() : out;
}

}  // namespace

Decided decide(const OpEntry& entry, const c10::OperatorHandle& op, const Stack& stack) {
  auto decision = std::make_unique<Decision>();
  const auto operands = operands_of(entry, stack);
  if (has_several_meshes_in_lists(entry, stack)) {
    decision->by_mesh = true;
    return {std::move(decision), {}};
  }
  decision->mesh = mesh_of_op(entry, operands);
  decision->operands.resize(operands.size());

  const RuleArgs args(entry, op, stack, decision->mesh);
  rules::OpCall call{entry.name, args.list(), decision->mesh, {}};
  const rules::Rule* rule = is_drawn_in_order(op, call) ? nullptr : rules::find_rule(entry.name);
  const bool by_numbers = numbers_can_change_results(entry, op);
  if (by_numbers && has_meta_kernel(op)) args.ask_for_all_numbers();
  Known known{infer_results(entry, op, stack)};
  keep_metas_of_written(entry, stack, known.metas);
  const bool has_metas = !known.metas.empty();
  if (entry.is_view) decision->view_offsets = view_offsets(known.metas);
  if (rule != nullptr) {
    known = known_results(*rule, call, std::move(known.metas), operands);
    if (!decide_by_rule(entry, *rule, call, known, *decision)) rule = nullptr;
  }
  if (rule == nullptr) {
    replicate_all(operands, *decision);
    decision->lacks_rule = true;
  } else if (loses_shared_elements(entry, operands, *decision) ||
             scales_parts_by_infinity(call, *decision)) {
    decision = undecided(*decision);
    replicate_all(operands, *decision);
  }
  if (!decision->mesh.contains_me()) {
    if (by_numbers && !has_metas) args.ask_for_all_numbers();
    complete_results(has_metas ? known.metas : infer_by_running(entry, op, stack), *decision);
  }
  find_write_back(entry, operands, *decision, known.metas);
  for (size_t i = 0; i < operands.size(); ++i) {
    const ShardedMeta* meta = operands[i].sharded;
    const Sharding& target = decision->operands[i];
    if (!target.defined()) continue;
    if (meta != nullptr ? target != meta->sharding() : !target.is_replicated()) {
      decision->moves = true;
    }
  }
  find_if_direct(entry, *decision);
  return {std::move(decision), args.asked()};
}

}  // namespace tessera::dtensor
