#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/rules/code/code_rules.h"
#include "tessera/rules/code/written.h"

/// Views that rename, drop, add or repeat dims without mixing them.
namespace tessera::rules {
namespace {

std::string move_line(std::string from, std::string to) {
  const auto or_none = [](std::string s) { return s.empty() ? std::string(".") : s; };
  return or_none(std::move(from)) + " -> " + or_none(std::move(to)) + " ; move 0";
}

std::string permute(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  const std::string from = letters_for(self.ndim());
  std::string to;
  for (const int64_t d : call.ints("dims")) {
    const int64_t dim = d < 0 ? d + self.ndim() : d;
    require(dim >= 0 && dim < self.ndim(), call.op, ": dim ", d, " of a tensor of ", self.ndim(),
            " dims");
    to += from[static_cast<size_t>(dim)];
  }
  return move_line(from, to);
}

std::string transpose(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  const std::string from = letters_for(self.ndim());
  if (from.empty()) return move_line("", "");
  std::string to = from;
  std::swap(to[static_cast<size_t>(dim_of(call, "dim0", self.ndim()))],
            to[static_cast<size_t>(dim_of(call, "dim1", self.ndim()))]);
  return move_line(from, to);
}

/// The dims that a squeeze removes: those of size 1 among the named, or among all.
std::vector<int64_t> squeezed_dims(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  std::vector<int64_t> out;
  const bool all = call.find("dim") == nullptr;
  std::vector<int64_t> named = call.ints("dim");
  for (auto& d : named) d += d < 0 ? self.ndim() : 0;
  for (int64_t d = 0; d < self.ndim(); ++d) {
    const bool asked = all || std::ranges::find(named, d) != named.end();
    if (asked && self.shape()[static_cast<size_t>(d)] == 1) out.push_back(d);
  }
  return out;
}

std::string squeeze(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  const auto gone = squeezed_dims(call);
  std::string from = letters_for(self.ndim()), to;
  for (int d = 0; d < self.ndim(); ++d) {
    char& c = from[static_cast<size_t>(d)];
    if (std::ranges::find(gone, d) != gone.end()) {
      c = '1';
    } else {
      to += c;
    }
  }
  return move_line(from, to);
}

std::string unsqueeze(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  const std::string from = letters_for(self.ndim());
  std::string to = from;
  to.insert(static_cast<size_t>(dim_of(call, "dim", self.ndim() + 1)), "1");
  return move_line(from, to);
}

/// New and expanded dims are not sharded: every rank has all of what is repeated.
std::string expanded(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  const auto size = call.ints("size");
  const int added = static_cast<int>(size.size()) - self.ndim();
  std::string from = letters_for(self.ndim()), to;
  for (int d = 0; d < static_cast<int>(size.size()); ++d) {
    const int in = d - added;
    if (in < 0) {
      to += static_cast<char>('N' + d);
      continue;
    }
    char& c = from[static_cast<size_t>(in)];
    const int64_t want = size[static_cast<size_t>(d)];
    if (self.shape()[static_cast<size_t>(in)] == 1 && want != 1 && want != -1) {
      c = '1';
      to += static_cast<char>('N' + d);
    } else {
      to += c;
    }
  }
  return move_line(from, to);
}

std::string select(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  std::string from = letters_for(self.ndim());
  const auto dim = static_cast<size_t>(dim_of(call, "dim", self.ndim()));
  std::string to = from;
  to.erase(dim, 1);
  from[dim] = upper(from[dim]);
  return move_line(from, to);
}

std::string diagonal(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  std::string from = letters_for(self.ndim()), to;
  const int d1 = static_cast<int>(call.int_or("dim1", 0)),
            d2 = static_cast<int>(call.int_or("dim2", 1));
  for (int d = 0; d < self.ndim(); ++d) {
    char& c = from[static_cast<size_t>(d)];
    if (d == (d1 < 0 ? d1 + self.ndim() : d1) || d == (d2 < 0 ? d2 + self.ndim() : d2)) {
      c = upper(c);
    } else {
      to += c;
    }
  }
  return move_line(from, to + "Z");
}

std::string diag_embed(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  const int ndim = self.ndim() + 1;
  std::string from = letters_for(self.ndim());
  from.back() = upper(from.back());
  int d1 = static_cast<int>(call.int_or("dim1", -2)),
      d2 = static_cast<int>(call.int_or("dim2", -1));
  d1 += d1 < 0 ? ndim : 0;
  d2 += d2 < 0 ? ndim : 0;
  std::string to;
  size_t next = 0;
  for (int d = 0; d < ndim; ++d) to += d == d1 ? 'Y' : d == d2 ? 'Z' : from[next++];
  return move_line(from, to);
}

/// The gradient of select or diagonal: zeros around the incoming gradient.
std::string select_backward(const OpCall& call) {
  const auto sizes = call.ints("input_sizes");
  const auto ndim = static_cast<int>(sizes.size());
  std::string to = letters_for(ndim), from = to;
  const auto dim = static_cast<size_t>(dim_of(call, "dim", ndim));
  from.erase(dim, 1);
  to[dim] = 'Z';
  return move_line(from, to);
}

std::string diagonal_backward(const OpCall& call) {
  const auto ndim = static_cast<int>(call.ints("input_sizes").size());
  std::string to = letters_for(ndim), from;
  int d1 = static_cast<int>(call.int_or("dim1", 0)), d2 = static_cast<int>(call.int_or("dim2", 1));
  d1 += d1 < 0 ? ndim : 0;
  d2 += d2 < 0 ? ndim : 0;
  for (int d = 0; d < ndim; ++d) {
    if (d != d1 && d != d2) from += to[static_cast<size_t>(d)];
  }
  to[static_cast<size_t>(d1)] = 'Y';
  to[static_cast<size_t>(d2)] = 'Z';
  return move_line(from + "X", to);
}

/// Windows overlap, so their gradients are summed. `dim` counts the dims of the input, not those of
/// the gradient, which has one more.
std::string unfold_backward(const OpCall& call) {
  const auto ndim = static_cast<int>(call.ints("input_sizes").size());
  std::string from = letters_for(ndim), to = from;
  if (ndim > 0) {
    const auto dim = static_cast<size_t>(dim_of(call, "dim", ndim));
    from[dim] = 'Y';
    to[dim] = 'Z';
  }
  return from + "W -> " + (to.empty() ? "." : to) + " ; linear 0";
}

/// After an odd number of quarter turns, the two dims are swapped.
std::string rot90(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  const auto dims = call.ints("dims");
  if (dims.size() != 2) return "";
  const auto at = [&](size_t i) {
    return static_cast<size_t>(dims[i] < 0 ? dims[i] + self.ndim() : dims[i]);
  };
  std::string from = letters_for(self.ndim());
  from[at(0)] = upper(from[at(0)]);
  from[at(1)] = upper(from[at(1)]);
  std::string to = from;
  if (call.int_or("k", 1) % 2 != 0) std::swap(to[at(0)], to[at(1)]);
  return move_line(from, to);
}

std::string diagonal_scatter(const OpCall& call) {
  const std::string line = diagonal(call);  // "aBC -> aZ ; move 0"
  const std::string from = line.substr(0, line.find(" -> "));
  const std::string taken = line.substr(from.size() + 4, line.find(" ; ") - from.size() - 4);
  return from + ", " + taken + " -> " + from + " ; move 0+1";
}

std::string unbind(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  const auto dim = static_cast<size_t>(dim_of(call, "dim", self.ndim()));
  std::string from = letters_for(self.ndim()), each = from;
  each.erase(dim, 1);
  if (each.empty()) each = ".";
  from[dim] = upper(from[dim]);
  std::string to;
  for (int64_t i = 0; i < self.shape()[dim]; ++i) to += (i > 0 ? "," : "") + each;
  if (to.empty()) return "";
  return from + " -> " + to + " ; move 0";
}

/// A repeated dim becomes strided: each rank's part occurs in every copy.
std::vector<Row> repeat_rows(const OpCall& call, int axis) {
  const Sharding self = tensor_of(call, "self");
  const auto repeats = call.ints("repeats");
  const int added = static_cast<int>(repeats.size()) - self.ndim();
  std::vector<Row> out;
  const auto add = [&](Placement from, Placement to) {
    Row row;
    row.operands = {from};
    row.results = {to};
    if (from.is_sharded()) {
      row.letter = from.dim();
      row.size = self.shape()[static_cast<size_t>(from.dim())];
      if (from.kind() == Placement::Kind::ragged) row.as_is = 0;
    }
    out.push_back(std::move(row));
  };
  const Placement& now = self.placement(axis);
  for (int d = 0; d < self.ndim(); ++d) {
    const int64_t times = repeats[static_cast<size_t>(d + added)];
    if (times < 1 || (self.shape()[static_cast<size_t>(d)] < 2 && !now.is_sharded(d))) continue;
    add(Shard(d), times == 1 ? Shard(d + added) : StridedShard(d + added, times));
    if (now.is_sharded(d) && !now.is_plain_shard() && times == 1) add(now, now.on_dim(d + added));
  }
  if (now.is_partial()) {
    add(now, now);
  } else {
    for (auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min})
      add(Partial(op), Partial(op));
  }
  return out;
}

Rule repeat_rule() {
  Rule rule;
  rule.op = "aten::repeat";
  rule.text = "code: a repeated dim becomes strided";
  rule.rows = repeat_rows;
  rule.infer = [](const OpCall& call) {
    const Sharding self = tensor_of(call, "self");
    ResultMeta meta;
    meta.shape = call.ints("repeats");
    const size_t added = meta.shape.size() - static_cast<size_t>(self.ndim());
    for (size_t d = added; d < meta.shape.size(); ++d) meta.shape[d] *= self.shape()[d - added];
    meta.stride = contiguous_stride(meta.shape);
    meta.dtype = self.dtype();
    return std::vector<ResultMeta>{meta};
  };
  return rule;
}

Rule view_dtype_rule() {
  return written_rule("aten::view.dtype", "code: the last dim is whole if it changes its length",
                      [](const OpCall& call) -> std::string {
                        const DType from = tensor_of(call, "self").dtype();
                        const auto to =
                            static_cast<DType>(call.int_or("dtype", static_cast<int64_t>(from)));
                        return dtype_bytes(from) == dtype_bytes(to) ? "* -> *" : "*L -> *M";
                      });
}

std::string renorm(const OpCall& call) {
  const int ndim = tensor_of(call, "self").ndim();
  std::string line = letters_for(ndim);
  for (int d = 0; d < ndim; ++d) {
    if (d != dim_of(call, "dim", ndim))
      line[static_cast<size_t>(d)] = upper(line[static_cast<size_t>(d)]);
  }
  return line + " -> " + line;
}

/// The local dim may have size 1 where the global one does not, so the dims are passed explicitly.
Rule squeeze_rule(std::string_view op) {
  Rule rule = written_rule(op, "code: dims of size 1 go away", squeeze);
  rule.instead = "aten::squeeze.dims";
  rule.localise.push_back(
      {"dim", [](const OpCall& call, auto, auto) -> Arg { return squeezed_dims(call); }});
  return rule;
}

Rule expand_rule() {
  Rule rule = written_rule("aten::expand", "code: new and stretched dims are whole", expanded);
  rule.localise.push_back(local_shape_of_result("size"));
  rule.infer = [](const OpCall& call) {
    const Sharding self = tensor_of(call, "self");
    ResultMeta meta;
    meta.shape = call.ints("size");
    meta.stride.assign(meta.shape.size(), 0);
    for (size_t d = meta.shape.size() - static_cast<size_t>(self.ndim()), in = 0;
         d < meta.shape.size(); ++d, ++in) {
      if (meta.shape[d] == -1) meta.shape[d] = self.shape()[in];
      if (meta.shape[d] == self.shape()[in]) meta.stride[d] = self.stride()[in];
    }
    meta.dtype = self.dtype();
    return std::vector<ResultMeta>{meta};
  };
  return rule;
}

/// Gradients of views: zeros of the input's shape around the gradient of the result.
Rule view_backward_rule(std::string_view op, std::string (*write)(const OpCall&)) {
  Rule rule = written_rule(op, "code: zeros around what comes in", write);
  rule.localise.push_back(local_shape_of_result("input_sizes"));
  rule.infer = contiguous_input;
  return rule;
}

Rule unbind_rule() {
  Rule rule = written_rule("aten::unbind.int", "code: a whole dim becomes a list", unbind);
  rule.result_count = -1;
  return rule;
}

}  // namespace

std::vector<Rule> dim_rules() {
  return {
      written_rule("aten::permute", "code: dims in another order", permute),
      written_rule("aten::transpose.int", "code: two dims change places", transpose),
      written_rule("aten::unsqueeze", "code: a new dim of size 1", unsqueeze),
      written_rule("aten::select.int", "code: a whole dim goes away", select),
      written_rule("aten::diagonal", "code: two whole dims become one", diagonal),
      written_rule("aten::rot90", "code: the dims that turn are whole", rot90),
      written_rule("aten::diagonal_scatter", "code: two dims are whole", diagonal_scatter),
      written_rule("aten::diag_embed", "code: a whole dim becomes two", diag_embed),
      repeat_rule(),
      view_dtype_rule(),
      written_rule("aten::renorm", "code: only the dim of the norms may be sharded", renorm),
      squeeze_rule("aten::squeeze"),
      squeeze_rule("aten::squeeze.dim"),
      squeeze_rule("aten::squeeze.dims"),
      expand_rule(),
      view_backward_rule("aten::select_backward", select_backward),
      view_backward_rule("aten::diagonal_backward", diagonal_backward),
      view_backward_rule("aten::unfold_backward", unfold_backward),
      unbind_rule(),
  };
}

}  // namespace tessera::rules
