#include "tessera/partition/rewrite/localise.h"

#include <algorithm>
#include <array>

#include "tessera/base/errors.h"
#include "tessera/partition/graph/sizes.h"
#include "tessera/partition/rewrite/masked_look_up.h"

namespace tessera::partition {
namespace {

using program::ArgKind;
using program::Argument;
using program::IntOrValue;
using program::NamedArgument;
using program::Node;
using program::PassedBy;
using program::ValueId;

/// The parameters of ops that rules put in the place of others, in order.
struct Parameters {
  std::string_view op;
  std::array<std::string_view, 3> names;
};
constexpr std::array<Parameters, 4> kParameters = {{
    {"aten::split_with_sizes", {"self", "split_sizes", "dim"}},
    {"aten::unsafe_split_with_sizes", {"self", "split_sizes", "dim"}},
    {"aten::squeeze.dims", {"self", "dim", ""}},
    {"aten::view", {"self", "size", ""}},
}};

std::string target_of(std::string_view op) {
  std::string text(op.substr(op.find("::") + 2));
  if (text.find('.') == std::string::npos) text += ".default";
  return "torch.ops." + std::string(op.substr(0, op.find("::"))) + "." + text;
}

NamedArgument* find_argument(Node& node, std::string_view name) {
  const auto found = std::ranges::find(node.inputs, name, &NamedArgument::name);
  return found == node.inputs.end() ? nullptr : &*found;
}

/// Replaces an op by another one, whose arguments go by the same names.
void use_instead(Node& node, std::string_view op) {
  const auto known = std::ranges::find(kParameters, op, &Parameters::op);
  if (known == kParameters.end()) {
    throw NotSupported(join_text(node.target, " runs as ", op,
                                 " on shards, which this version cannot write into a program"));
  }
  std::vector<NamedArgument> inputs;
  for (const std::string_view name : known->names) {
    if (name.empty()) continue;
    NamedArgument* given = find_argument(node, name);
    if (given == nullptr) continue;
    given->passed_by = PassedBy::position;
    inputs.push_back(std::move(*given));
  }
  node.target = target_of(op);
  node.inputs = std::move(inputs);
}

/// A view that became a reshape calls its sizes by another name.
std::string local_name(const Node& node, const std::string& name) {
  const bool renamed = name == "size" && node.target == "torch.ops.aten.reshape.default";
  return renamed ? "shape" : name;
}

class ArgumentLocaliser {
 public:
  /// `result` is the local result of the node, if it has one tensor.
  ArgumentLocaliser(Emitter& emit, Node& node, std::optional<ValueId> result)
      : emit_(emit), node_(node), result_(result) {}

  /// None leaves the argument as it is, absent or not.
  void set(const std::string& name, const rules::Arg& local) {
    if (std::holds_alternative<std::monostate>(local)) return;
    NamedArgument* given = find_argument(node_, name);
    Argument value = argument_of(given != nullptr ? &given->arg : nullptr, local);
    if (given != nullptr) {
      given->arg = std::move(value);
    } else {
      node_.inputs.push_back({name, std::move(value), PassedBy::keyword});
    }
  }

 private:
  Argument argument_of(const Argument* given, const rules::Arg& local) {
    if (const auto* list = std::get_if<std::vector<int64_t>>(&local)) return sizes(given, *list);
    if (const auto* number = std::get_if<int64_t>(&local)) return size(given, *number);
    if (const auto* truth = std::get_if<bool>(&local)) return {ArgKind::boolean, *truth};
    if (const auto* number = std::get_if<rules::Number>(&local)) {
      return {ArgKind::floating, number->to_double()};
    }
    throw NotSupported(join_text(node_.target,
                                 ": a local argument of a kind that programs of "
                                 "ranks do not have"));
  }

  /// A number as it is; a symbol as its share.
  IntOrValue local_of(const IntOrValue& given, int64_t local) {
    if (const auto* id = std::get_if<ValueId>(&given)) return emit_.part(*id, local);
    return local;
  }

  /// Whether an open size (-1) of a view stays open: it must where the size is symbolic, and must
  /// not where the result may be empty.
  bool stays_open(const IntOrValue& given, size_t dim, size_t dims) const {
    if (!std::holds_alternative<int64_t>(given) || std::get<int64_t>(given) != -1) return false;
    if (!result_) return true;
    const auto& sizes = emit_.meta(*result_).sizes;
    return sizes.size() != dims || !sizes[dim].is_number();
  }

  Argument size(const Argument* given, int64_t local) {
    if (given == nullptr || given->kind != ArgKind::sym_int) return Argument::of_int(local);
    return Emitter::size(local_of(given->as<IntOrValue>(), local));
  }

  Argument sizes(const Argument* given, const std::vector<int64_t>& local) {
    std::vector<IntOrValue> before;
    if (given != nullptr && given->kind == ArgKind::ints) {
      const auto& list = given->as<std::vector<int64_t>>();
      before.assign(list.begin(), list.end());
    } else if (given != nullptr && given->kind == ArgKind::sym_ints) {
      before = given->as<std::vector<IntOrValue>>();
    }
    std::vector<IntOrValue> out;
    for (size_t i = 0; i < local.size(); ++i) {
      if (before.size() != local.size()) {
        out.emplace_back(local[i]);
      } else if (stays_open(before[i], i, local.size())) {
        out.push_back(before[i]);
      } else {
        out.push_back(local_of(before[i], local[i]));
      }
    }
    return Emitter::sizes(std::move(out));
  }

  Emitter& emit_;
  Node& node_;
  std::optional<ValueId> result_;
};

/// The size of a sharded dim: programs of ranks go on computing with the global one.
bool emit_global_size(Emitter& emit, const NodePlace& place, const Node& node) {
  if (node.target != "torch.ops.aten.sym_size.int") return false;
  const auto* self = node.find("self");
  const auto* dim = node.find("dim");
  if (self == nullptr || dim == nullptr || self->kind != ArgKind::tensor) return false;
  const ValueId x = self->as<ValueId>();
  const Sharding sharding = seen_in(place.assignment.of(x), place.mesh);
  if (!sharding.defined() || dim->kind != ArgKind::integer) return false;
  int64_t d = dim->as<int64_t>();
  if (d < 0) d += sharding.ndim();
  require(d >= 0 && d < sharding.ndim(), node.target, " asks for dim ", dim->as<int64_t>(),
          " of a tensor of ", sharding.ndim(), " dims");
  const int64_t whole = sharding.shape()[static_cast<size_t>(d)];
  const int64_t mine = sharding.local_shape()[static_cast<size_t>(d)];
  if (whole == mine) return false;
  const ValueId local = emit.sym_size(x, static_cast<int>(d));
  const auto* result = std::get_if<IntOrValue>(&node.outputs.at(0).data);
  ensure(result != nullptr && whole % mine == 0, "a symbolic dim is sharded unevenly");
  emit.define(std::get<ValueId>(*result), "_operator.mul",
              {Emitter::named("a", Emitter::size(local)),
               Emitter::named("b", Argument::of_int(whole / mine))});
  return true;
}

/// Factors for results: the node's own results get other values, and the products their names.
void emit_scaled(Emitter& emit, const NodeAssignment& chosen, Node node,
                 const std::vector<double>& factors) {
  std::vector<std::pair<ValueId, ValueId>> products;  // (of the node, scaled)
  for (size_t r = 0; r < chosen.results.size(); ++r) {
    if (r >= factors.size() || factors[r] == 1.0) continue;
    program::Value raw = emit.graph().value(chosen.results[r]);
    raw.name = emit.graph().unused_name(raw.name + "_part");
    products.emplace_back(emit.graph().add_value(std::move(raw)), chosen.results[r]);
    for (Argument& output : node.outputs) {
      if (auto* id = std::get_if<ValueId>(&output.data); id != nullptr && *id == chosen.results[r])
        *id = products.back().first;
    }
  }
  if (node.name && products.size() == 1) node.name = emit.graph().value(products[0].first).name;
  emit.append(std::move(node));
  for (size_t r = 0; r < chosen.results.size(); ++r) {
    const auto found =
        std::ranges::find(products, chosen.results[r], &std::pair<ValueId, ValueId>::second);
    if (found == products.end()) continue;
    if (factors[r] == 0.0) {  // not a product: the mean of an empty part is NaN
      emit.define(found->second, "torch.ops.aten.zeros_like.default",
                  {Emitter::tensor("self", found->first)});
    } else {
      emit.define(found->second, "torch.ops.aten.mul.Scalar",
                  {Emitter::tensor("self", found->first),
                   Emitter::named("other", {ArgKind::floating, factors[r]})});
    }
  }
}

}  // namespace

void emit_local_node(Emitter& emit, const NodePlace& place, Node node) {
  const NodeAssignment& chosen = place.assignment.nodes[place.index];
  if (emit_global_size(emit, place, node)) return;
  std::vector<Sharding> operands;
  std::vector<Sharding> results;
  bool sharded = false;
  for (const Operand& operand : chosen.operands) {
    operands.push_back(seen_in(operand.needed, place.mesh));
    sharded |= is_sharded(operands.back());
  }
  for (const ValueId id : chosen.results) {
    results.push_back(seen_in(place.assignment.of(id), place.mesh));
    sharded |= is_sharded(results.back());
  }
  if (!chosen.kernel.empty()) {
    emit_masked_look_up(emit, chosen, std::move(node), operands);
    return;
  }
  if (!sharded || chosen.rule == nullptr) {
    emit.append(std::move(node));
    return;
  }
  const NodeCall call(place.global, place.index, place.assignment, place.mesh);
  ArgumentLocaliser localiser(
      emit, node, chosen.results.size() == 1 ? std::optional(chosen.results[0]) : std::nullopt);
  for (const rules::LocalArg& local : chosen.rule->localise) {
    localiser.set(local_name(node, local.name), local.value(call.call(), operands, results));
  }
  if (!chosen.rule->instead.empty() && chosen.rule->instead != call.op()) {
    use_instead(node, chosen.rule->instead);
  }
  std::vector<double> factors;
  if (chosen.rule->scale) factors = chosen.rule->scale(call.call(), operands);
  emit_scaled(emit, chosen, std::move(node), factors);
}

}  // namespace tessera::partition
