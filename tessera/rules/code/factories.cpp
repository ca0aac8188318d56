#include <algorithm>

#include "tessera/base/shape.h"
#include "tessera/rules/code/code_rules.h"
#include "tessera/rules/code/written.h"

/// Tensors created like another one, whose values are not read, so it is not redistributed.
///
///   new_zeros of the same shape   same sharding; partial axes become replicated
///   new_empty                     partial axes stay partial: it is written next, for example by
///                                 the copy of a gradient
///   new_zeros of another shape    sharded along dims of the same size, as gradients of look-ups
///                                 are; else replicated
namespace tessera::rules {
namespace {

std::vector<JointRow> rows(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  JointRow row;
  row.operands.emplace_back(self.placements().begin(), self.placements().end());
  row.results = row.operands;
  const auto size = call.ints("size");
  for (auto& p : row.results[0]) {
    const auto dim = static_cast<size_t>(p.is_sharded() ? p.dim() : 0);
    const bool keeps =
        p.is_sharded() && std::ssize(size) == self.ndim() && size[dim] == self.shape()[dim];
    const bool waits = p.is_partial() && call.op.find("new_empty") != std::string_view::npos;
    if (!keeps && !waits) p = Replicate();
  }
  if (!self.has_default_order()) row.order = self.order();
  return {row};
}

}  // namespace

std::vector<Rule> factory_rules() {
  std::vector<Rule> out;
  for (const char* op : {"new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"}) {
    Rule rule;
    rule.op = std::string("aten::") + op;
    rule.text = "code: as the other along dims of the same size, else replicated";
    rule.joint = rows;
    rule.localise.push_back(local_shape_of_result("size"));
    if (rule.op.ends_with("strided")) {
      rule.localise.push_back(
          {"stride",
           [](const OpCall&, std::span<const Sharding>, std::span<const Sharding> results) -> Arg {
             const auto stride = results[0].local_stride();
             return std::vector<int64_t>(stride.begin(), stride.end());
           }});
    }
    rule.infer = [](const OpCall& call) {
      ResultMeta meta;
      meta.shape = call.ints("size");
      meta.stride =
          call.find("stride") != nullptr ? call.ints("stride") : contiguous_stride(meta.shape);
      meta.dtype = tensor_of(call, "self").dtype();
      return std::vector<ResultMeta>{meta};
    };
    out.push_back(std::move(rule));
  }
  return out;
}

}  // namespace tessera::rules
