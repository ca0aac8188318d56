#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/rules/code/code_rules.h"
#include "tessera/rules/code/written.h"

/// Ops that select or write elements by index. The indexed dim is not sharded or, if a rank can
/// process its share of the indexes alone, the indexes are sharded instead. If elements of other
/// ranks can count as zeros, the indexed dim may be sharded too.
namespace tessera::rules {
namespace {

/// Lower-case letters for dims in which all tensors have the same size, upper case elsewhere and at
/// `dim`.
std::string agreed(const std::vector<Sharding>& tensors, int dim) {
  std::string out = letters_for(tensors[0].ndim());
  for (int d = 0; d < tensors[0].ndim(); ++d) {
    const auto i = static_cast<size_t>(d);
    bool same = d != dim;
    for (const auto& t : tensors) same &= t.shape()[i] == tensors[0].shape()[i];
    if (!same) out[i] = upper(out[i]);
  }
  return out;
}

/// The letters of an index-shaped tensor: different letters where it differs.
std::string as_index(std::string letters, int dim, char at_dim) {
  for (size_t d = 0; d < letters.size(); ++d) {
    if (letters[d] >= 'A' && letters[d] <= 'Z') letters[d] = static_cast<char>('K' + d);
  }
  letters[static_cast<size_t>(dim)] = at_dim;
  return letters;
}

/// The clause that lets the indexed dim of a look-up be sharded: each rank looks up what it holds.
/// Empty if the result is the larger tensor, since gathering the input is then cheaper than summing
/// the result, or if its elements cannot be added.
std::string masked_look_up(const Sharding& self, int dim, int64_t found, char letter) {
  const bool can_add = !dtype_name(self.dtype()).starts_with("f8");
  if (!can_add || found > self.shape()[static_cast<size_t>(dim)]) return "";
  const bool truths = self.dtype() == DType::boolean;
  return std::string(" ; mask ") + letter +
         (truths ? std::string(" ; reduce ") + letter + " bor" : std::string());
}

std::string gather(const OpCall& call) {
  const Sharding self = tensor_of(call, "self"), index = tensor_of(call, "index");
  if (self.ndim() == 0 || index.ndim() != self.ndim()) return "";
  const int dim = dim_of(call, "dim", self.ndim());
  const auto at = static_cast<size_t>(dim);
  std::string s = agreed({self, index}, dim);
  const std::string i = as_index(s, dim, 'z');
  const char letter = letters_for(self.ndim())[at];
  const std::string mask = masked_look_up(self, dim, index.shape()[at], letter);
  if (!mask.empty()) s[at] = letter;
  return s + ", " + i + " -> " + i + mask + " ; move 0";
}

/// A scatter: if it `adds`, shares of the indexes give partial sums, and parts of the indexed dim
/// accept the values for their rows.
std::string scatter_line(const OpCall& call, std::string_view source, bool adds,
                         std::string_view passes) {
  const Sharding self = tensor_of(call, "self"), index = tensor_of(call, "index");
  if (self.ndim() == 0 || index.ndim() != self.ndim()) return "";
  const int dim = dim_of(call, "dim", self.ndim());
  std::vector<Sharding> tensors = {self, index};
  const Sharding src = tensor_of(call, source);
  if (src.defined()) {
    if (src.ndim() != self.ndim()) return "";
    tensors.push_back(src);
  }
  std::string s = agreed(tensors, dim);
  const bool same_length = !src.defined() || src.shape()[static_cast<size_t>(dim)] ==
                                                 index.shape()[static_cast<size_t>(dim)];
  const std::string i = as_index(s, dim, adds && same_length ? 'z' : 'Z');
  std::string from_source = i;
  if (!same_length) from_source[static_cast<size_t>(dim)] = 'Y';
  std::string mask;
  if (adds) {
    const char letter = letters_for(self.ndim())[static_cast<size_t>(dim)];
    s[static_cast<size_t>(dim)] = letter;
    mask = std::string(" ; mask ") + letter;
  }
  return std::string(adds ? "+" : "") + s + ", " + i + (src.defined() ? ", " + from_source : "") +
         " -> " + s + mask + std::string(passes);
}

std::string scatter_src(const OpCall& call) {
  return scatter_line(call, "src", false, " ; move 0+2");
}
std::string scatter_value(const OpCall& call) {
  return scatter_line(call, "", false, " ; idem 0 ; pass sum 0 if value=0");
}
std::string scatter_add(const OpCall& call) {
  return scatter_line(call, "src", true, " ; linear 0+2");
}
std::string scatter_reduce(const OpCall& call) { return scatter_line(call, "src", false, ""); }

std::string index_select(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  if (self.ndim() == 0 || tensor_of(call, "index").ndim() != 1) return "";
  const int dim = dim_of(call, "dim", self.ndim());
  const auto at = static_cast<size_t>(dim);
  std::string from = letters_for(self.ndim()), to = from;
  const std::string mask = masked_look_up(self, dim, tensor_of(call, "index").shape()[0], from[at]);
  if (mask.empty()) from[at] = upper(from[at]);
  to[at] = 'z';
  return from + ", z -> " + to + mask + " ; move 0";
}

std::string index_into(const OpCall& call, const char* source, bool adds, std::string_view passes) {
  const Sharding self = tensor_of(call, "self"), src = tensor_of(call, source);
  if (self.ndim() == 0 || tensor_of(call, "index").ndim() != 1) return "";
  if (*source != '\0' && src.ndim() != self.ndim()) return "";
  const auto dim = static_cast<size_t>(dim_of(call, "dim", self.ndim()));
  std::string s = letters_for(self.ndim()), from = s;
  const std::string mask = adds ? std::string(" ; mask ") + s[dim] : std::string();
  if (!adds) s[dim] = upper(s[dim]);
  const char i = adds ? 'z' : 'Z';
  from[dim] = i;
  return std::string(adds ? "+" : "") + s + ", " + i + (*source != '\0' ? ", " + from : "") +
         " -> " + s + mask + std::string(passes);
}

std::string index_add(const OpCall& call) {
  return index_into(call, "source", true, " ; linear 0+2");
}
std::string index_copy(const OpCall& call) {
  return index_into(call, "source", false, " ; move 0+2");
}
std::string index_reduce(const OpCall& call) { return index_into(call, "source", false, ""); }
std::string index_fill_scalar(const OpCall& call) {
  return index_into(call, "", false, " ; idem 0 ; pass sum 0 if value=0");
}
std::string index_fill_tensor(const OpCall& call) {
  std::string line = index_into(call, "", false, " ; idem 0");
  const size_t arrow = line.find(" ->");
  return arrow == std::string::npos ? "" : line.insert(arrow, ", .");
}

/// self[i, :, j]: how dims of self, of the indexes and of the result correspond.
struct Indexed {
  std::string self;                  // upper case: indexed
  std::vector<std::string> indexes;  // one per tensor of the list, "" for None
  std::string result;
};

std::optional<Indexed> indexed(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  const auto indices = tensors_of(call, "indices");
  if (static_cast<int>(indices.size()) > self.ndim()) return std::nullopt;
  int rank = 0;
  std::vector<int> at;
  for (size_t d = 0; d < indices.size(); ++d) {
    if (!indices[d].defined()) continue;
    if (indices[d].dtype() == DType::boolean || indices[d].dtype() == DType::u8)
      return std::nullopt;
    rank = std::max(rank, indices[d].ndim());
    at.push_back(static_cast<int>(d));
  }
  if (at.empty()) return std::nullopt;
  Indexed out;
  out.self = letters_for(self.ndim());
  const std::string index = letters_for(rank, 'p');
  for (size_t d = 0; d < indices.size(); ++d) {
    if (!indices[d].defined()) {
      out.indexes.emplace_back();
      continue;
    }
    out.self[d] = upper(out.self[d]);
    const std::string mine = index.substr(static_cast<size_t>(rank - indices[d].ndim()));
    out.indexes.push_back(mine.empty() ? "." : mine);
  }
  const bool adjacent = at.back() - at.front() + 1 == static_cast<int>(at.size());
  if (!adjacent) out.result = index;
  for (int d = 0; d < self.ndim(); ++d) {
    const char c = out.self[static_cast<size_t>(d)];
    if (adjacent && d == at.front()) out.result += index;
    if (c >= 'a') out.result += c;
  }
  return out;
}

std::string join_terms(const std::vector<std::string>& terms) {
  std::string out;
  for (const auto& t : terms) out += ", " + (t.empty() ? std::string("_?") : t);
  return out;
}

std::string index(const OpCall& call) {
  const auto i = indexed(call);
  if (!i) return "";
  return i->self + join_terms(i->indexes) + " -> " + (i->result.empty() ? "." : i->result) +
         " ; move 0";
}

std::string index_put(const OpCall& call) {
  const auto i = indexed(call);
  if (!i) return "";
  const bool adds = call.bool_or("accumulate", false);
  const Sharding values = tensor_of(call, "values");
  if (values.ndim() > static_cast<int>(i->result.size())) return "";
  std::string from = i->result.substr(i->result.size() - static_cast<size_t>(values.ndim()));
  auto indexes = i->indexes;
  const std::string together = std::to_string(1 + indexes.size());
  if (!adds) {  // the last of two writes to a position wins: all ranks must see all
    const auto whole = [](std::string& term) {
      std::ranges::transform(term, term.begin(), [](char c) { return c >= 'p' ? upper(c) : c; });
    };
    whole(from);
    std::ranges::for_each(indexes, whole);
  }
  if (from.empty()) from = ".";
  return std::string(adds ? "+" : "") + i->self + join_terms(indexes) + ", " + from + " -> " +
         i->self + (adds ? " ; linear 0+" : " ; move 0+") + together;
}

std::string constant_pad(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  const auto pad = call.ints("pad");
  std::string from = letters_for(self.ndim()), to = from;
  for (size_t i = 0; i + 1 < pad.size() && i / 2 < from.size(); i += 2) {
    const size_t d = from.size() - 1 - i / 2;
    if (pad[i] == 0 && pad[i + 1] == 0) continue;
    from[d] = upper(from[d]);
    to[d] = static_cast<char>('N' + d);
  }
  if (from.empty()) return "";
  const Arg* value = call.find("value");
  const bool has_value = value != nullptr && !std::holds_alternative<std::monostate>(*value);
  return from + " -> " + to + " ; idem 0" +
         (has_value ? " ; pass sum 0 if value=0" : " ; pass sum 0");
}

/// self with src in place of a slice or index of a dim.
std::string select_scatter(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  const auto dim = static_cast<size_t>(dim_of(call, "dim", self.ndim()));
  std::string s = letters_for(self.ndim()), from = s;
  s[dim] = upper(s[dim]);
  from.erase(dim, 1);
  return s + ", " + (from.empty() ? "." : from) + " -> " + s + " ; move 0+1";
}

std::string slice_scatter(const OpCall& call) {
  const Sharding self = tensor_of(call, "self");
  const auto dim = static_cast<size_t>(dim_of(call, "dim", self.ndim()));
  std::string s = letters_for(self.ndim()), from = s;
  s[dim] = upper(s[dim]);
  from[dim] = 'Z';
  return s + ", " + from + " -> " + s + " ; move 0+1";
}

}  // namespace

std::vector<Rule> indexing_rules() {
  std::vector<Rule> out;
  const auto add = [&](const char* op, const char* what, WriteLine write) {
    out.push_back(written_rule(std::string("aten::") + op, what, std::move(write)));
  };
  constexpr const char* finds =
      "code: the indexed dim is sharded (mask), or whole, or the indexes are sharded";
  constexpr const char* picks = "code: the indexed dim is whole, or the indexes are sharded";
  constexpr const char* places = "code: the indexed dim is whole";
  constexpr const char* takes =
      "code: the indexed dim is sharded (mask), or whole, or partial sums over the indexes";
  constexpr const char* sums = "code: the indexed dim is whole, or shares of the indexes add up";
  add("gather", finds, gather);
  add("index_select", finds, index_select);
  add("scatter.src", places, scatter_src);
  add("scatter.value", places, scatter_value);
  add("scatter_add", takes, scatter_add);
  for (const char* op : {"scatter.reduce", "scatter_reduce.two"}) add(op, places, scatter_reduce);
  add("scatter.value_reduce", places,
      [](const OpCall& call) { return scatter_line(call, "", false, ""); });
  add("index_add", takes, index_add);
  add("index_copy", places, index_copy);
  add("index_reduce", places, index_reduce);
  add("index_fill.int_Scalar", places, index_fill_scalar);
  add("index_fill.int_Tensor", places, index_fill_tensor);
  add("constant_pad_nd", "code: padded dims are whole", constant_pad);
  add("select_scatter", places, select_scatter);
  add("slice_scatter", places, slice_scatter);
  for (const char* op : {"index.Tensor", "_unsafe_index.Tensor"}) add(op, picks, index);
  for (const char* op : {"index_put", "_unsafe_index_put", "_index_put_impl"})
    add(op, sums, index_put);
  return out;
}

}  // namespace tessera::rules
