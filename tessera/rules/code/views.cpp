#include <algorithm>
#include <bit>

#include "tessera/base/shape.h"
#include "tessera/rules/code/code_rules.h"
#include "tessera/rules/code/keep_axes.h"
#include "tessera/rules/code/reshape.h"
#include "tessera/rules/code/written.h"

/// view and similar ops: dims merge and split. No communication if the sharding can be expressed in
/// the new shape; otherwise the fewest axes are gathered.
namespace tessera::rules {

std::vector<JointRow> keep_axes(const Sharding& self, const PlaceResults& place) {
  const int axes = self.mesh().ndim();
  std::vector<int> shard_axes;
  for (int axis = 0; axis < axes; ++axis) {
    if (self.placement(axis).is_sharded()) shard_axes.push_back(axis);
  }
  std::vector<JointRow> out;
  for (int kept = static_cast<int>(shard_axes.size()); kept >= 0 && out.empty(); --kept) {
    for (uint32_t mask = 0; mask < 1U << shard_axes.size(); ++mask) {
      if (std::popcount(mask) != kept) continue;
      std::vector<Placement> placements(self.placements().begin(), self.placements().end());
      for (size_t i = 0; i < shard_axes.size(); ++i) {
        if ((mask >> i & 1U) == 0) placements[static_cast<size_t>(shard_axes[i])] = Replicate();
      }
      Sharding at;
      try {
        at = self.with_placements(placements, self.order());
      } catch (const Error&) {
        continue;  // a ragged shard inside one that is gathered
      }
      auto results = place(at);
      if (!results) continue;
      out.push_back({{std::move(placements)},
                     std::move(*results),
                     self.has_default_order() ? std::vector<int>() : self.order()});
    }
  }
  return out;
}

namespace {

std::vector<int64_t> viewed_shape(const OpCall& call) {
  const Arg* size = call.find("size");
  return complete_shape(call.ints(size != nullptr ? "size" : "shape"),
                        tensor_of(call, "self").numel());
}

Rule view_rule(const char* op, const char* attribute) {
  Rule rule;
  rule.op = op;
  rule.text = "code: dims merge and split";
  rule.joint = [](const OpCall& call) {
    const auto shape = viewed_shape(call);
    const Sharding self = tensor_of(call, "self");
    std::vector<int> order = self.has_default_order() ? std::vector<int>() : self.order();
    for (int axis = 0; axis < self.mesh().ndim(); ++axis) {
      if (std::ranges::find(order, axis) == order.end()) order.push_back(axis);
    }
    return keep_axes(self, [&](const Sharding& at) -> MaybeResults {
      auto placements = reshape_placements(at, shape, order);
      if (!placements) return std::nullopt;
      return MaybeResults({std::move(*placements)});
    });
  };
  rule.infer = [](const OpCall& call) {
    ResultMeta meta;
    meta.shape = viewed_shape(call);
    meta.stride = contiguous_stride(meta.shape);
    meta.dtype = tensor_of(call, "self").dtype();
    return std::vector<ResultMeta>{meta};
  };
  rule.localise.push_back(local_shape_of_result(attribute));
  return rule;
}

}  // namespace

std::vector<Rule> view_rules() {
  std::vector<Rule> out = {view_rule("aten::view", "size"), view_rule("aten::_unsafe_view", "size"),
                           view_rule("aten::reshape", "shape"),
                           view_rule("aten::_reshape_copy", "size"),
                           view_rule("aten::_reshape_alias", "size")};
  // Its stride argument is that of the global tensor; a view computes the local one itself.
  out.back().instead = "aten::view";
  return out;
}

}  // namespace tessera::rules
