#include "tessera/partition/rewrite/masked_look_up.h"

#include <algorithm>
#include <array>

#include "tessera/base/errors.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::partition {
namespace {

using program::ArgKind;
using program::Argument;
using program::Node;
using program::TensorMeta;
using program::ValueId;

/// The table and the index of an op, and the dim of the table that the index counts along.
struct LookUp {
  std::string_view target;
  std::string_view table;
  std::string_view index;
  bool has_dim = false;
};
constexpr std::array<LookUp, 3> kLookUps = {{
    {"torch.ops.aten.embedding.default", "weight", "indices", false},
    {"torch.ops.aten.index_select.default", "self", "index", true},
    {"torch.ops.aten.gather.default", "self", "index", true},
}};

ValueId* tensor_argument(Node& node, std::string_view name) {
  for (auto& input : node.inputs) {
    if (input.name == name) return std::get_if<ValueId>(&input.arg.data);
  }
  return nullptr;
}

Argument number(int64_t value) { return Argument::of_int(value); }

class MaskWriter {
 public:
  MaskWriter(Emitter& emit, ValueId index) : emit_(emit), index_(index) {}

  ValueId compare(std::string_view target, int64_t with) {
    TensorMeta meta = emit_.meta(index_);
    meta.dtype = DType::boolean;
    return emit_.op(target,
                    {Emitter::tensor("self", index_), Emitter::named("other", number(with))},
                    std::move(meta));
  }

  ValueId both(ValueId a, ValueId b) {
    return emit_.op("torch.ops.aten.logical_and.default",
                    {Emitter::tensor("self", a), Emitter::tensor("other", b)}, emit_.meta(a));
  }

  /// Fails when the program runs if an index is outside [0, size).
  void check_range(int64_t size) {
    const ValueId exist =
        both(compare("torch.ops.aten.ge.Scalar", 0), compare("torch.ops.aten.lt.Scalar", size));
    TensorMeta scalar = emit_.meta(exist);
    scalar.sizes.clear();
    scalar.strides.clear();
    const ValueId all =
        emit_.op("torch.ops.aten.all.default", {Emitter::tensor("self", exist)}, std::move(scalar));
    emit_.effect("torch.ops.aten._assert_async.msg",
                 {Emitter::tensor("self", all),
                  Emitter::named("assert_msg",
                                 Argument::of_string(join_text(
                                     "an index is out of range for a table of ", size, " rows")))});
  }

  ValueId elsewhere(Interval mine) {
    const ValueId here = both(compare("torch.ops.aten.ge.Scalar", mine.begin),
                              compare("torch.ops.aten.lt.Scalar", mine.end));
    return emit_.op("torch.ops.aten.logical_not.default", {Emitter::tensor("self", here)},
                    emit_.meta(here));
  }

  ValueId local_rows(Interval mine) {
    const TensorMeta meta = emit_.meta(index_);
    const ValueId shifted = mine.begin == 0
                                ? index_
                                : emit_.op("torch.ops.aten.sub.Scalar",
                                           {Emitter::tensor("self", index_),
                                            Emitter::named("other", number(mine.begin))},
                                           meta);
    return emit_.op("torch.ops.aten.clamp.default",
                    {Emitter::tensor("self", shifted), Emitter::named("min", number(0)),
                     Emitter::named("max", number(mine.size() - 1))},
                    meta);
  }

  /// A mask with dims of size 1 appended.
  ValueId with_dims(ValueId mask, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      TensorMeta meta = emit_.meta(mask);
      meta.sizes.emplace_back(1);
      meta.strides.emplace_back(1);
      mask = emit_.op("torch.ops.aten.unsqueeze.default",
                      {Emitter::tensor("self", mask), Emitter::named("dim", number(-1))},
                      std::move(meta));
    }
    return mask;
  }

 private:
  Emitter& emit_;
  ValueId index_;
};

}  // namespace

void emit_masked_look_up(Emitter& emit, const NodeAssignment& chosen, Node node,
                         std::span<const Sharding> operands) {
  const auto known = std::ranges::find(kLookUps, node.target, &LookUp::target);
  if (chosen.kernel != "mask" || known == kLookUps.end()) {
    throw NotSupported(join_text(node.target, " with the kernel '", chosen.kernel,
                                 "' cannot be written into a program"));
  }
  ValueId* index = tensor_argument(node, known->index);
  ensure(index != nullptr && !operands.empty(), "a look-up without an index");
  const Sharding& table = operands[0];
  int64_t dim = 0;
  if (const auto* given = node.find("dim"); known->has_dim && given != nullptr) {
    dim = given->as<int64_t>();
    if (dim < 0) dim += table.ndim();
  }
  const auto held =
      held_intervals(table, static_cast<int>(dim), table.mesh().my_coordinate().value());
  if (held.size() != 1) {
    throw NotSupported(
        join_text("node ", node.name.value_or("?"), ", ", node.target, " of ", table,
                  ": a rank holds ", held.size(),
                  " intervals of the dim that is looked up; shard it evenly over one "
                  "axis, with at least one row for each rank"));
  }
  MaskWriter writer(emit, *index);
  writer.check_range(table.shape()[static_cast<size_t>(dim)]);
  const ValueId elsewhere = writer.elsewhere(held[0]);
  *index = writer.local_rows(held[0]);
  // An embedding's rows are the last dim of its result; index_select's index is one dim of it.
  int64_t more = 0;
  if (node.target.find("embedding") != std::string::npos) more = 1;
  if (node.target.find("index_select") != std::string::npos) more = table.ndim() - 1 - dim;
  const ValueId result = chosen.results.at(0);
  program::Value raw = emit.graph().value(result);
  raw.name = emit.graph().unused_name(raw.name + "_here");
  const ValueId found = emit.graph().add_value(std::move(raw));
  node.outputs = {Argument::of_tensor(found)};
  node.name = emit.graph().value(found).name;
  emit.append(std::move(node));
  emit.define(
      result, "torch.ops.aten.masked_fill.Scalar",
      {Emitter::tensor("self", found), Emitter::tensor("mask", writer.with_dims(elsewhere, more)),
       Emitter::named("value", number(0))});
}

}  // namespace tessera::partition
