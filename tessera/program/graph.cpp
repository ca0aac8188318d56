#include "tessera/program/graph.h"

#include <algorithm>
#include <iterator>

#include "tessera/base/errors.h"

namespace tessera::program {
namespace {

/// Indexed by kind.
constexpr std::string_view kWireNames[] = {
    "as_none",
    "as_tensor",
    "as_tensors",
    "as_int",
    "as_ints",
    "as_float",
    "as_floats",
    "as_string",
    "as_strings",
    "as_sym_int",
    "as_sym_ints",
    "as_scalar_type",
    "as_memory_format",
    "as_layout",
    "as_device",
    "as_bool",
    "as_bools",
    "as_sym_bool",
    "as_sym_bools",
    "as_graph",
    "as_optional_tensors",
    "as_custom_obj",
    "as_operator",
    "as_sym_float",
    "as_sym_floats",
    "as_optional_tensor",
    "as_complex",
    "as_nested_tensors",
    "as_int_lists",
    "as_string_to_argument",
    "as_float_lists",
};
static_assert(std::size(kWireNames) == static_cast<size_t>(ArgKind::float_lists) + 1);

}  // namespace

std::string_view wire_name(ArgKind kind) { return kWireNames[static_cast<size_t>(kind)]; }

std::optional<ArgKind> arg_kind_from_wire(std::string_view name) {
  const auto found = std::ranges::find(kWireNames, name);
  if (found == std::end(kWireNames)) return std::nullopt;
  return static_cast<ArgKind>(found - std::begin(kWireNames));
}

const Argument* Node::find(std::string_view argument) const {
  const auto found = std::ranges::find(inputs, argument, &NamedArgument::name);
  return found == inputs.end() ? nullptr : &found->arg;
}

std::string_view Node::metadata_of(std::string_view key) const {
  for (const auto& [name, text] : metadata) {
    if (name == key) return text;
  }
  return {};
}

std::pair<std::string, std::string> Node::op_name() const {
  constexpr std::string_view kPrefix = "torch.ops.";
  const std::string_view text = target;
  if (!text.starts_with(kPrefix)) return {};
  const size_t name_space = text.find('.', kPrefix.size());
  if (name_space == std::string_view::npos) return {};
  const size_t overload = text.find('.', name_space + 1);
  std::string op = join_text(text.substr(kPrefix.size(), name_space - kPrefix.size()),
                             "::", text.substr(name_space + 1, overload - name_space - 1));
  if (overload == std::string_view::npos) return {std::move(op), ""};
  return {std::move(op), std::string(text.substr(overload + 1))};
}

ValueId Graph::add_value(Value value) {
  const ValueId id{static_cast<uint32_t>(values.size())};
  require(by_name_.emplace(value.name, id).second, "value ", value.name, " is defined twice");
  values.push_back(std::move(value));
  return id;
}

std::optional<ValueId> Graph::find_value(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

std::string Graph::unused_name(std::string_view base) const {
  std::string name(base);
  for (int i = 1; by_name_.contains(name); ++i) name = join_text(base, "_", i);
  return name;
}

}  // namespace tessera::program
