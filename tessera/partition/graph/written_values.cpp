#include "tessera/partition/graph/written_values.h"

#include <algorithm>
#include <optional>

#include "tessera/partition/graph/aliases.h"
#include "tessera/rules/registry/derive.h"

namespace tessera::partition {
namespace {

using program::ArgKind;
using program::Argument;
using program::ExportedProgram;
using program::Graph;
using program::Node;
using program::ValueId;

std::optional<ValueId> written_by(const Graph& graph, const Node& node) {
  if (!rules::is_in_place(node.op_name().first)) return std::nullopt;
  const auto operands = tensors_read(graph, node);
  return operands.empty() ? std::nullopt : std::optional(operands[0]);
}

/// The result of an in-place op that is the tensor it wrote to, of the same sizes.
std::optional<ValueId> result_of_write(const Graph& graph, const Node& node, ValueId written) {
  const auto results = tensors_made(graph, node);
  if (results.size() != 1) return std::nullopt;
  const auto& before = *graph.value(written).tensor;
  const auto& after = *graph.value(results[0]).tensor;
  const bool same = before.dtype == after.dtype && before.sizes == after.sizes;
  return same ? std::optional(results[0]) : std::nullopt;
}

/// Replaces references to tensors in an argument.
struct Renamer {
  const std::map<uint32_t, ValueId>& newest;

  void operator()(ValueId& id) const {
    if (const auto found = newest.find(id.index); found != newest.end()) id = found->second;
  }
  void operator()(std::optional<ValueId>& id) const {
    if (id) (*this)(*id);
  }
  void operator()(Argument& arg) const { std::visit(*this, arg.data); }
  void operator()(std::pair<std::string, Argument>& member) const { (*this)(member.second); }
  template <typename T>
  void operator()(std::vector<T>& list) const {
    if constexpr (!std::is_same_v<T, bool>) {
      for (T& item : list) (*this)(item);
    }
  }
  template <typename T>
  void operator()(T&) const {}  // refers to no tensor
};

/// The values that share memory, when they are made and read, and who writes them.
class Lifetimes {
 public:
  Lifetimes(const ExportedProgram& program, const std::map<uint32_t, ValueId>& tied)
      : graph_(program.graph), aliases_(graph_), values_(graph_.values.size()) {
    for (const auto& [name, same] : tied) aliases_.join({name}, same);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      aliases_.add(node);
      for (const ValueId id : tensors_made(graph_, node)) values_[id.index].made = n + 1;
      for (const ValueId id : tensors_read(graph_, node)) {
        values_[id.index].last_read = n;
        values_[id.index].is_read = true;
      }
      if (const auto written = written_by(graph_, node)) writes_.emplace_back(n, *written);
    }
    for (const auto& output : graph_.outputs) {
      program::each_value(output, [&](ValueId id) {
        values_[id.index].last_read = graph_.nodes.size();
        values_[id.index].is_read = true;
      });
    }
    for (const auto& input : graph_.inputs) {
      program::each_value(input, [&](ValueId id) { values_[id.index].is_input = true; });
    }
  }

  std::vector<bool> written_sets() const {
    std::vector<bool> out(values_.size(), false);
    for (const auto& [node, written] : writes_) out[aliases_.set_of(written)] = true;
    return out;
  }
  uint32_t set_of(ValueId id) const { return aliases_.set_of(id); }

  /// Whether each write to the memory of a buffer is to the buffer itself or to the result of the
  /// write before, and nothing that shares the memory is read across one.
  bool can_be_followed(ValueId buffer) const {
    const uint32_t set = set_of(buffer);
    ValueId newest = buffer;
    for (const auto& [node, written] : writes_) {
      if (set_of(written) != set) continue;
      const auto operands = tensors_read(graph_, graph_.nodes[node]);
      const auto of_set = [&](ValueId id) { return set_of(id) == set; };
      const auto result = result_of_write(graph_, graph_.nodes[node], written);
      if (written != newest || std::ranges::count_if(operands, of_set) != 1 || !result)
        return false;
      newest = *result;
    }
    for (uint32_t v = 0; v < values_.size(); ++v) {
      if (set_of({v}) != set || !values_[v].is_read) continue;
      if (values_[v].is_input && ValueId{v} != buffer) return false;
      for (const auto& [node, written] : writes_) {
        const bool later = set_of(written) == set && node >= values_[v].made;
        const bool reads_it = written == ValueId{v};
        if (later && values_[v].last_read + (reads_it ? 0 : 1) > node) return false;
      }
    }
    return true;
  }

 private:
  struct Value {
    size_t made = 0;  // 1 + the node that makes it
    size_t last_read = 0;
    bool is_read = false;
    bool is_input = false;
  };

  const Graph& graph_;
  Aliases aliases_;
  std::vector<Value> values_;
  std::vector<std::pair<size_t, ValueId>> writes_;
};

}  // namespace

void read_results_of_writes(ExportedProgram& program) {
  Graph& graph = program.graph;
  std::map<uint32_t, ValueId> newest;
  const Renamer rename{newest};
  for (Node& node : graph.nodes) {
    if (!newest.empty()) {
      for (auto& input : node.inputs) rename(input.arg);
    }
    const auto written = written_by(graph, node);
    const auto result = written ? result_of_write(graph, node, *written) : std::nullopt;
    if (!result) continue;
    for (auto& [name, now] : newest) {
      if (now == *written) now = *result;
    }
    newest[written->index] = *result;
  }
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    rename(graph.outputs[i]);
    auto& spec = program.signature.outputs[i].arg;
    if (spec) rename(*spec);
  }
}

WrittenValues find_written(const ExportedProgram& program,
                           const std::map<uint32_t, ValueId>& tied) {
  const Lifetimes lifetimes(program, tied);
  const auto written = lifetimes.written_sets();
  const size_t count = program.graph.values.size();
  WrittenValues out{std::vector<bool>(count), std::vector<bool>(count), {}};
  for (uint32_t v = 0; v < count; ++v) out.whole_only[v] = written[lifetimes.set_of({v})];
  for (const auto& input : program.signature.inputs) {
    const bool is_held = input.kind == program::InputKind::buffer ||
                         input.kind == program::InputKind::tensor_constant;
    if (!is_held || !input.arg || input.arg->kind != ArgKind::tensor) continue;
    const auto buffer = input.arg->as<ValueId>();
    bool updated = written[lifetimes.set_of(buffer)];
    for (size_t i = 0; i < program.signature.outputs.size(); ++i) {
      const auto& output = program.signature.outputs[i];
      if (output.kind != program::OutputKind::buffer_mutation || output.target != input.target)
        continue;
      out.updates.emplace(i, buffer);
      updated = true;
    }
    if (!updated || !lifetimes.can_be_followed(buffer)) continue;
    out.is_state[buffer.index] = true;
    for (uint32_t v = 0; v < count; ++v) {
      if (lifetimes.set_of({v}) == lifetimes.set_of(buffer)) out.whole_only[v] = false;
    }
  }
  return out;
}

}  // namespace tessera::partition
