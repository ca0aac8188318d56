#include "tessera/partition/graph/program_view.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/errors.h"
#include "tessera/partition/graph/aliases.h"
#include "tessera/partition/graph/random_ops.h"
#include "tessera/rules/registry/derive.h"

namespace tessera::partition {
namespace {

using program::ArgKind;
using program::InputKind;
using program::ValueId;
using program::ValueKind;

bool is_metadata_reader(std::string_view op) {
  return op.starts_with("aten::sym_size") || op.starts_with("aten::sym_stride") ||
         op.starts_with("aten::sym_numel") || op.starts_with("aten::sym_storage_offset") ||
         op == "aten::_assert_tensor_metadata";
}

}  // namespace

ProgramView::ProgramView(const program::ExportedProgram& program, const DeviceMesh& mesh)
    : program_(program),
      mesh_(mesh),
      whole_(program.graph.values.size()),
      readers_(program.graph.values.size()),
      source_(program.graph.values.size(), Source::constant) {
  if (mesh.size() > 1) require_no_random_ops(program);
  for (size_t i = 0; i < whole_.size(); ++i) {
    const program::Value& value = program.graph.values[i];
    if (value.kind != ValueKind::tensor || !value.tensor) continue;
    whole_[i] = Sharding(mesh, std::vector<Placement>(static_cast<size_t>(mesh.ndim())),
                         hint_shape(value), {.dtype = value.tensor->dtype});
  }
  add_nodes();
  add_outputs();
  tie_weights();
  written_ = find_written(program, tied_);
  set_sources();
}

void ProgramView::add_nodes() {
  const auto& nodes = graph().nodes;
  for (size_t n = 0; n < nodes.size(); ++n) {
    calls_.push_back(std::make_unique<NodeCall>(graph(), nodes[n], mesh_, whole_));
    const NodeCall& call = *calls_.back();
    rules_.push_back(call.op().empty() ? nullptr : rule_of(call.op()));
    metadata_only_.push_back(is_metadata_reader(call.op()));
    in_place_.push_back(rules::is_in_place(call.op()));
    for (size_t o = 0; o < call.operands().size(); ++o) {
      if (call.operands()[o]) readers_[call.operands()[o]->index].push_back({n, o});
    }
  }
}

void ProgramView::set_sources() {
  for (const auto& input : program_.signature.inputs) {
    if (!input.arg || input.arg->kind != ArgKind::tensor) continue;
    const auto id = input.arg->as<ValueId>();
    Source& source = source_[id.index];
    if (input.kind == InputKind::parameter) source = Source::weight;
    if (input.kind == InputKind::user_input) source = Source::input;
    if (written_.is_state[id.index]) source = Source::state;
  }
  for (const auto& call : calls_) {
    bool varies = false, any_weight = false;
    for (const auto& id : call->operands()) {
      if (!id) continue;
      varies |= source(*id) == Source::node || source(*id) == Source::input ||
                source(*id) == Source::state;
      any_weight |= is_from_weights(*id);
    }
    for (const ValueId id : call->results()) {
      source_[id.index] = varies ? Source::node : any_weight ? Source::derived : Source::constant;
    }
  }
}

void ProgramView::add_outputs() {
  for (size_t i = 0; i < graph().outputs.size(); ++i) {
    const auto& output = graph().outputs[i];
    if (output.kind != ArgKind::tensor) continue;
    readers_[output.as<ValueId>().index].push_back({nodes(), i});
  }
}

void ProgramView::tie_weights() {
  std::map<std::string, ValueId> by_record;
  for (const auto& input : program_.signature.inputs) {
    if (!input.arg || input.arg->kind != ArgKind::tensor || input.target.empty()) continue;
    const auto* payload = program_.find_payload(input.target);
    if (payload == nullptr || !payload->meta) continue;
    const auto id = input.arg->as<ValueId>();
    const bool is_weight = input.kind == InputKind::parameter || input.persistent;
    const std::string record = (is_weight ? "w/" : "c/") + payload->path_name + " " +
                               payload->meta->to_text() + " " +
                               payload->meta->storage_offset.to_text();
    const auto [known, is_new] = by_record.emplace(record, id);
    if (is_new) continue;
    if (readers(known->second).empty()) {
      tied_[known->second.index] = id;
      known->second = id;
    } else {
      tied_[id.index] = known->second;
    }
  }
}

program::ValueId ProgramView::tied(ValueId id) const {
  for (auto found = tied_.find(id.index); found != tied_.end(); found = tied_.find(id.index))
    id = found->second;
  return id;
}

std::optional<ValueId> ProgramView::updated_buffer(size_t output) const {
  const auto found = written_.updates.find(output);
  return found == written_.updates.end() ? std::nullopt : std::optional(tied(found->second));
}

bool ProgramView::is_symbolic(ValueId id, int dim) const {
  return !graph().value(id).tensor->sizes[static_cast<size_t>(dim)].is_number();
}

void ProgramView::assume_multiple(const std::string& symbol, int64_t by) {
  auto [known, is_new] = multiples_.emplace(symbol, by);
  if (!is_new) known->second = std::lcm(known->second, by);
}

bool ProgramView::can_shard(ValueId id, int dim, int64_t ranks) const {
  if (!is_symbolic(id, dim)) return true;
  const auto& size = graph().value(id).tensor->sizes[static_cast<size_t>(dim)];
  // What all values of the expression can be divided by, found from a few: for expressions that are
  // sums and products this is the greatest common divisor of their coefficients.
  constexpr std::array<int64_t, 8> kPrimes = {101, 257, 409, 523, 641, 769, 887, 1009};
  int64_t divisor = 0;
  for (size_t round = 0; round < kPrimes.size(); ++round) {
    size_t next = round;
    std::map<std::string, int64_t, std::less<>> values;
    const auto value =
        size.expression()->evaluate([&](std::string_view symbol) -> std::optional<int64_t> {
          const auto [known, is_new] = values.emplace(symbol, 0);
          if (is_new) {
            const auto multiple = multiples_.find(known->first);
            known->second = kPrimes[next++ % kPrimes.size()] *
                            (multiple == multiples_.end() ? 1 : multiple->second);
          }
          return known->second;
        });
    if (!value) return false;
    divisor = std::gcd(divisor, *value);
  }
  return divisor % ranks == 0;
}

}  // namespace tessera::partition
