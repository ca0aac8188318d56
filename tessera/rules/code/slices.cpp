#include <algorithm>

#include "tessera/base/shape.h"
#include "tessera/rules/code/code_rules.h"
#include "tessera/rules/code/keep_axes.h"
#include "tessera/rules/code/written.h"
#include "tessera/sharding/local_shape.h"

/// Slices of a dim. Each rank keeps its intersection with the slice, without communication:
///
///   [10] as 3,3,3,1, slice 2:8   ->  S0[1,3,2,0]
///
/// A strided shard is kept if the slice consists of whole pieces of it, else gathered first:
///
///   [12] as SS0(3) over 2, slice 4:8   ->  S0      (the second of three pieces, split in two)
namespace tessera::rules {
namespace {

struct Part {
  int64_t start = 0, end = 0, step = 1;
  /// The number of its indexes in [begin, end).
  int64_t count(Interval in) const {
    return until(std::min(end, in.end)) - until(std::min(end, in.begin));
  }
  /// The number of its indexes below i.
  int64_t until(int64_t i) const { return i <= start ? 0 : (i - start + step - 1) / step; }
};

Part narrow_part(const OpCall& call, int64_t size) {
  const int64_t start = call.int_or("start", 0);
  const int64_t from = start < 0 ? start + size : start;
  return {from, from + call.int_or("length", 0), 1};
}

Part slice_part(const OpCall& call, int64_t size) {
  if (call.find("length") != nullptr) return narrow_part(call, size);
  const auto clamp = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size); };
  Part part;
  part.start = clamp(call.int_or("start", 0));
  part.end = std::max(part.start, clamp(call.int_or("end", size)));
  part.step = std::max<int64_t>(1, call.int_or("step", 1));
  return part;
}

/// How many pieces of a strided shard a slice has, if it consists of whole pieces and no other axis
/// shards the dim.
std::optional<int64_t> whole_pieces(const Sharding& at, int dim, const Part& part) {
  const auto axes = at.axes_of_dim(dim);
  if (axes.size() != 1 || part.step != 1) return std::nullopt;
  const Placement& p = at.placement(axes[0]);
  const int64_t size = at.shape()[static_cast<size_t>(dim)];
  if (p.kind() != Placement::Kind::strided || size == 0 || size % p.split() != 0)
    return std::nullopt;
  const int64_t piece = size / p.split();
  if (part.start % piece != 0 || part.end % piece != 0 || part.end <= part.start)
    return std::nullopt;
  return (part.end - part.start) / piece;
}

/// The placements of a slice of `dim`, which `axes` shard one inside the other.
std::optional<std::vector<Placement>> part_placements(const Sharding& at, int dim,
                                                      const Part& part) {
  std::vector<Placement> out(at.placements().begin(), at.placements().end());
  const int64_t size = at.shape()[static_cast<size_t>(dim)];
  if (part.start == 0 && part.end == size && part.step == 1) return out;
  if (const auto kept = whole_pieces(at, dim, part)) {
    out[static_cast<size_t>(at.axes_of_dim(dim)[0])] =
        *kept == 1 ? Shard(dim) : StridedShard(dim, *kept);
    return out;
  }
  std::vector<Interval> pieces = {{0, size}};
  for (int axis : at.axes_of_dim(dim)) {
    const Placement& p = at.placement(axis);
    if (p.kind() == Placement::Kind::strided) return std::nullopt;
    const int ranks = at.mesh().size(axis);
    std::vector<Interval> inner;
    std::vector<int64_t> table;
    bool plain = true;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const int64_t whole = part.count(pieces[i]);
      int64_t begin = pieces[i].begin;
      for (int k = 0; k < ranks; ++k) {
        const int64_t n = p.is_plain_shard()
                              ? chunk_interval(pieces[i].size(), ranks, k).size()
                              : p.sizes()[i * static_cast<size_t>(ranks) + static_cast<size_t>(k)];
        inner.push_back({begin, begin + n});
        begin += n;
        table.push_back(part.count(inner.back()));
        plain &= table.back() == chunk_interval(whole, ranks, k).size();
      }
    }
    out[static_cast<size_t>(axis)] = plain ? Shard(dim) : RaggedShard(dim, table);
    pieces = std::move(inner);
  }
  return out;
}

/// The slice in local indexes.
Part local_part(const Sharding& operand, int dim, const Part& part) {
  const auto d = static_cast<size_t>(dim);
  if (operand.axes_of_dim(dim).empty()) return part;
  const int64_t begin = operand.local_offset()[d], size = operand.local_shape()[d];
  if (part.start == 0 && part.end == operand.shape()[d] && part.step == 1) return {0, size, 1};
  if (whole_pieces(operand, dim, part)) {  // pieces side by side, each with as much of mine
    const int64_t split = operand.placement(operand.axes_of_dim(dim)[0]).split();
    const int64_t piece = operand.shape()[d] / split, here = size / split;
    return {part.start / piece * here, part.end / piece * here, 1};
  }
  const Interval mine{begin, begin + size};
  if (part.count(mine) == 0) return {0, 0, part.step};
  const int64_t first = part.start + part.until(begin) * part.step;
  return {first - begin, std::min(part.end, mine.end) - begin, part.step};
}

/// slice by start and end, narrow_copy by start and length.
Rule slice_rule(const char* op) {
  Rule rule;
  rule.op = op;
  rule.text = "code: each rank keeps what it holds of the part";
  rule.joint = [](const OpCall& call) {
    const Sharding self = tensor_of(call, "self");
    const int dim = dim_of(call, "dim", self.ndim());
    const Part part = slice_part(call, self.shape()[static_cast<size_t>(dim)]);
    return keep_axes(self, [&](const Sharding& at) -> MaybeResults {
      auto placements = part_placements(at, dim, part);
      if (!placements) return std::nullopt;
      return MaybeResults({std::move(*placements)});
    });
  };
  const auto value = [](int64_t Part::*field) {
    return [field](const OpCall& call, std::span<const Sharding> operands,
                   std::span<const Sharding>) -> Arg {
      const int dim = dim_of(call, "dim", operands[0].ndim());
      return local_part(operands[0], dim,
                        slice_part(call, operands[0].shape()[static_cast<size_t>(dim)])).*
             field;
    };
  };
  rule.localise = {{"start", value(&Part::start)}};
  if (rule.op == "aten::narrow_copy") {
    rule.localise.push_back({"length",
                             [](const OpCall& call, std::span<const Sharding> operands,
                                std::span<const Sharding> results) -> Arg {
                               const int dim = dim_of(call, "dim", operands[0].ndim());
                               return results[0].local_shape()[static_cast<size_t>(dim)];
                             }});
  } else {
    rule.localise.push_back({"end", value(&Part::end)});
  }
  rule.infer = [](const OpCall& call) {
    const Sharding self = tensor_of(call, "self");
    const auto dim = static_cast<size_t>(dim_of(call, "dim", self.ndim()));
    const Part part = slice_part(call, self.shape()[dim]);
    ResultMeta meta{{self.shape().begin(), self.shape().end()},
                    {self.stride().begin(), self.stride().end()},
                    self.dtype()};
    meta.stride[dim] *= part.step;
    meta.shape[dim] = part.count({0, self.shape()[dim]});
    return std::vector<ResultMeta>{meta};
  };
  return rule;
}

/// The slices that a split returns.
std::vector<Part> split_parts(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  const int64_t size = self.shape()[static_cast<size_t>(dim_of(call, "dim", self.ndim()))];
  std::vector<int64_t> sizes = call.ints("split_sizes");
  if (call.find("split_sizes") == nullptr) {
    const int64_t each = call.int_or("split_size", size);
    for (int64_t at = 0; at < size || sizes.empty(); at += each) {
      sizes.push_back(std::min(each, size - at));
      if (each == 0) break;
    }
  }
  std::vector<Part> out;
  int64_t at = 0;
  for (int64_t n : sizes) {
    out.push_back({at, at + n, 1});
    at += n;
  }
  return out;
}

Rule split_rule(const char* op, const char* instead) {
  Rule rule;
  rule.op = op;
  rule.text = "code: each rank keeps what it holds of each part";
  rule.result_count = -1;
  rule.joint = [](const OpCall& call) {
    const Sharding self = tensor_of(call, "self");
    const int dim = dim_of(call, "dim", self.ndim());
    const auto parts = split_parts(call);
    return keep_axes(self, [&](const Sharding& at) -> MaybeResults {
      std::vector<std::vector<Placement>> out;
      for (const auto& part : parts) {
        auto placements = part_placements(at, dim, part);
        if (!placements) return std::nullopt;
        out.push_back(std::move(*placements));
      }
      return out;
    });
  };
  rule.instead = instead;
  rule.localise.push_back({"split_sizes",
                           [](const OpCall& call, std::span<const Sharding> operands,
                              std::span<const Sharding>) -> Arg {
                             const int dim = dim_of(call, "dim", operands[0].ndim());
                             std::vector<int64_t> sizes;
                             for (const auto& part : split_parts(call)) {
                               const Part mine = local_part(operands[0], dim, part);
                               sizes.push_back(mine.end - mine.start);
                             }
                             return sizes;
                           }});
  rule.infer = [](const OpCall& call) {
    const Sharding self = tensor_of(call, "self");
    const auto dim = static_cast<size_t>(dim_of(call, "dim", self.ndim()));
    std::vector<ResultMeta> out;
    for (const auto& part : split_parts(call)) {
      ResultMeta meta{{self.shape().begin(), self.shape().end()},
                      {self.stride().begin(), self.stride().end()},
                      self.dtype()};
      meta.shape[dim] = part.end - part.start;
      out.push_back(std::move(meta));
    }
    return out;
  };
  return rule;
}

/// The gradient of a slice: padded with zeros. The dim may stay sharded if the incoming gradient is
/// sharded as the slice of an even shard would be.
Rule slice_backward_rule() {
  Rule rule;
  rule.op = "aten::slice_backward";
  rule.text = "code: zeros around what comes in";
  rule.joint = [](const OpCall& call) {
    const Sharding grad = call.operands().front();
    const auto shape = call.ints("input_sizes");
    const int dim = dim_of(call, "dim", grad.ndim());
    const Part part = slice_part(call, shape[static_cast<size_t>(dim)]);
    return keep_axes(grad, [&](const Sharding& at) -> MaybeResults {
      std::vector<Placement> out(at.placements().begin(), at.placements().end());
      if (at.axes_of_dim(dim).empty()) return MaybeResults({out});
      for (int axis : at.axes_of_dim(dim)) out[static_cast<size_t>(axis)] = Shard(dim);
      const Sharding input(at.mesh(), out, shape, {.dtype = at.dtype(), .order = at.order()});
      const auto back = part_placements(input, dim, part);
      if (!back || !std::ranges::equal(*back, at.placements())) return std::nullopt;
      return MaybeResults({out});
    });
  };
  const auto value = [](int64_t Part::*field) {
    return [field](const OpCall& call, std::span<const Sharding> operands,
                   std::span<const Sharding> results) -> Arg {
      const int dim = dim_of(call, "dim", operands[0].ndim());
      return local_part(results[0], dim,
                        slice_part(call, results[0].shape()[static_cast<size_t>(dim)])).*
             field;
    };
  };
  rule.localise = {local_shape_of_result("input_sizes"),
                   {"start", value(&Part::start)},
                   {"end", value(&Part::end)}};
  rule.infer = contiguous_input;
  return rule;
}

}  // namespace

std::vector<Rule> slice_rules() {
  return {slice_rule("aten::slice.Tensor"),
          slice_rule("aten::narrow_copy"),
          slice_backward_rule(),
          split_rule("aten::split.Tensor", "aten::split_with_sizes"),
          split_rule("aten::split_with_sizes", ""),
          split_rule("aten::unsafe_split.Tensor", "aten::unsafe_split_with_sizes"),
          split_rule("aten::unsafe_split_with_sizes", "")};
}

}  // namespace tessera::rules
