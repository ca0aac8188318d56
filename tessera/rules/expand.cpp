#include "tessera/rules/expand.h"

#include <algorithm>
#include <optional>
#include <span>

#include "tessera/base/shape.h"
#include "tessera/base/text.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::rules {
namespace {

/// The result's type, if nothing says it: complex if an operand is, else real if one is, else of
/// integers if one is. So a comparison may be taken for what has a derivative, but not the reverse.
DType likely_dtype(std::span<const Sharding> operands) {
  const auto rank = [](DType dtype) {
    const bool complex = !can_be_partial(dtype, ReduceOp::max);
    const bool real = can_be_partial(dtype, ReduceOp::avg);
    return complex ? 3 : real ? 2 : wraps_around(dtype) ? 1 : 0;
  };
  std::optional<DType> found;
  for (const Sharding& operand : operands) {
    if (!operand.defined()) continue;
    if (!found || rank(operand.dtype()) > rank(*found)) found = operand.dtype();
  }
  return found.value_or(DType::f32);
}

class Expander {
 public:
  Expander(const Bound& bound, const OpCall& call, int axis)
      : b_(bound), call_(call), axis_(axis), ranks_(call.mesh.size(axis)) {}

  std::vector<Row> run() {
    for (size_t i = 0; i < b_.letters.size(); ++i) {
      if (!why_whole(i).empty()) continue;
      add_sharded(
          static_cast<int>(i), [](int dim) { return Shard(dim); }, -1);
    }
    for (size_t o = 0; o < b_.operands.size(); ++o) add_irregular(o);
    for (const auto& c : b_.notation->clauses) {
      if (c.kind == Clause::Kind::pass && c.condition.holds(call_)) add_pass(c);
      if (c.kind == Clause::Kind::ignore && c.condition.holds(call_)) add_ignore(c);
    }
    add_declared();
    return std::move(rows_);
  }

  std::vector<Refusal> refusals() const {
    std::vector<Refusal> out;
    for (size_t i = 0; i < b_.letters.size(); ++i) {
      const std::string_view why = why_whole(i);
      Refusal refusal{std::vector<Placement>(b_.operands.size()), {}};
      bool used = false;
      for (size_t o = 0; o < b_.operands.size(); ++o) {
        const int dim = b_.dim_of(static_cast<int>(o), static_cast<int>(i));
        if (!b_.operands[o].defined() || dim < 0) continue;
        refusal.operands[o] = Shard(dim);
        used = true;
      }
      if (why.empty() || !used) continue;
      const auto& l = b_.letters[i];
      refusal.why =
          l.whole ? std::string(why) : join_text(l.size, " for ", ranks_, " ranks: ", why);
      out.push_back(std::move(refusal));
    }
    return out;
  }

 private:
  /// Why a letter must not be sharded; empty if it may be.
  std::string_view why_whole(size_t letter) const {
    const auto& l = b_.letters[letter];
    if (l.whole) return "must be whole";
    if (l.size < 0) return "of unknown size";
    if (l.kernel != nullptr && find_kernel(*l.kernel) == nullptr)
      return "needs a kernel of its own";
    if (l.flag != nullptr && !flag_set(*l.flag)) return "needs a flag that is not set";
    if (l.even && (l.size % ranks_ != 0 || l.size == 0)) return "only equal parts are possible";
    if (l.nonempty && chunk_interval(l.size, ranks_, ranks_ - 1).size() == 0)
      return "some would hold nothing, which the kernel does not take";
    if (!parts_are_multiples(l)) return "the kernel wants parts that are more aligned";
    if (l.size > 1 || is_sharded_already(static_cast<int>(letter))) return {};
    return "nothing to gain";
  }

  bool parts_are_multiples(const Bound::Letter& l) const {
    return l.size % l.multiple == 0 && chunk_interval(l.size, ranks_, 0).size() % l.multiple == 0;
  }

  /// The initial row: replicated, except for operands that are taken as they are.
  std::vector<Placement> untouched() const {
    std::vector<Placement> out(b_.operands.size());
    for (size_t o = 0; o < out.size(); ++o) {
      if (b_.operands[o].defined() && b_.term_of_operand[o]->as_is)
        out[o] = b_.operands[o].placement(axis_);
    }
    return out;
  }

  /// A dim of size 1 (or 0) is only offered if some operand already shards it: otherwise there is
  /// no gain.
  bool is_sharded_already(int letter) const {
    for (size_t o = 0; o < b_.operands.size(); ++o) {
      if (!b_.operands[o].defined()) continue;
      const auto& p = b_.operands[o].placement(axis_);
      if (!p.is_sharded()) continue;
      const auto& dims = b_.operand_dims[o];
      if (!dims.empty() && dims[static_cast<size_t>(p.dim())].letter == letter) return true;
    }
    return false;
  }

  template <typename Place>
  void add_sharded(int letter, const Place& place, int as_is) {
    const auto& l = b_.letters[static_cast<size_t>(letter)];
    Row row;
    row.letter = letter;
    row.size = l.size;
    row.even = l.even;
    row.nonempty = l.nonempty;
    row.multiple = l.multiple;
    row.as_is = as_is;
    bool used = false;
    row.operands = untouched();
    for (size_t o = 0; o < b_.operands.size(); ++o) {
      const int dim = b_.dim_of(static_cast<int>(o), letter);
      if (!b_.operands[o].defined() || dim < 0) continue;
      row.operands[o] = place(dim);
      used = true;
    }
    if (!used && l.kernel == nullptr) return;
    for (size_t r = 0; r < b_.result_dims.size(); ++r) {
      if (b_.term_of_result[r]->anything) {
        row.results.emplace_back();
        continue;
      }
      const int dim = b_.dim_of_result(static_cast<int>(r), letter);
      if (dim < 0 && is_free_of(*b_.term_of_result[r], l)) {
        row.results.emplace_back();
        continue;
      }
      row.results.push_back(dim >= 0 ? place(dim) : Partial(l.reduce.value_or(ReduceOp::sum)));
    }
    // An addend of a partial sum must be partial too.
    if (!row.results.empty() && row.results[0].is_partial()) {
      for (size_t o = 0; o < b_.operands.size(); ++o) {
        if (b_.term_of_operand[o]->addend && b_.operands[o].defined())
          row.operands[o] = row.results[0];
      }
    }
    if (l.kernel != nullptr) use_kernel(*find_kernel(*l.kernel), letter, row);
    add(std::move(row));
  }

  /// A kernel that combines reduces the results without the letter, by one all_reduce each.
  void use_kernel(const EnabledKernel& kernel, int letter, Row& row) const {
    row.kernel = kernel.name;
    row.comm = kernel.comm;
    if (kernel.comm != KernelComm::combine) return;
    const auto metas = infer_shapes(b_);
    for (size_t r = 0; r < metas.size(); ++r) {
      if (b_.dim_of_result(static_cast<int>(r), letter) >= 0) continue;
      int64_t bytes = dtype_bytes(metas[r].dtype);
      for (const int64_t size : metas[r].shape) bytes *= std::max<int64_t>(size, 1);
      row.sent += 2 * bytes * (ranks_ - 1) / ranks_;
    }
  }

  /// The rows of clauses `kernel name`.
  void add_declared() {
    for (const auto& c : b_.notation->clauses) {
      if (!c.declares_rows() || !c.condition.holds(call_)) continue;
      const EnabledKernel* kernel = find_kernel(c.name);
      if (kernel == nullptr || !kernel->rows) continue;
      for (Row& row : kernel->rows(call_, axis_)) {
        row.kernel = kernel->name;
        add(std::move(row));
      }
    }
  }

  static bool is_free_of(const Term& term, const Bound::Letter& l) {
    const char name = l.key < 128 ? static_cast<char>(l.key) : '*';
    return term.free_of.find(name) != std::string::npos;
  }

  /// If an operand is strided or ragged, all may use its placement.
  void add_irregular(size_t operand) {
    if (!b_.operands[operand].defined() || b_.operand_dims[operand].empty()) return;
    const Placement& p = b_.operands[operand].placement(axis_);
    if (!p.is_sharded() || p.is_plain_shard()) return;
    const auto& place = b_.operand_dims[operand][static_cast<size_t>(p.dim())];
    if (place.letter < 0 || place.product) return;
    const auto& l = b_.letters[static_cast<size_t>(place.letter)];
    if (l.whole || l.even || l.nonempty || l.multiple > 1) return;
    if (l.kernel != nullptr && find_kernel(*l.kernel) == nullptr) return;
    if (l.flag != nullptr && !flag_set(*l.flag)) return;
    if (b_.operands[operand].shape()[static_cast<size_t>(p.dim())] != l.size) return;
    const bool ragged = p.kind() == Placement::Kind::ragged;
    add_sharded(
        place.letter, [&](int dim) { return p.on_dim(dim); },
        ragged ? static_cast<int>(operand) : -1);
  }

  void add_pass(const Clause& c) {
    for (const ReduceOp op : c.ops) {
      Row row;
      row.operands = untouched();
      const ReduceOp out = !c.swaps              ? op
                           : op == ReduceOp::max ? ReduceOp::min
                           : op == ReduceOp::min ? ReduceOp::max
                                                 : op;
      bool used = false;
      bool possible = true;
      for (size_t o = 0; o < b_.operands.size(); ++o) {
        if (!b_.operands[o].defined()) continue;
        const auto term = static_cast<int>(b_.term_of_operand[o] - b_.notation->operands.data());
        const bool named = std::ranges::find(c.operands, term) != c.operands.end();
        if (!named && !b_.term_of_operand[o]->addend) continue;
        possible &= can_be_partial(b_.operands[o].dtype(), op);
        row.operands[o] = Partial(op);
        used |= named;
      }
      if (!used || !possible) continue;
      for (const Term* t : b_.term_of_result) {
        row.results.push_back(t->anything ? Replicate() : Partial(out));
        const DType made = dtype_of_result(row.results.size() - 1);
        possible &= t->anything || can_make(c, row, out, made);
      }
      if (possible) add(std::move(row));
    }
  }

  /// Whether the Partial operands of a row make a Partial result of this type.
  bool can_make(const Clause& c, const Row& row, ReduceOp out, DType made) const {
    if (!can_be_partial(made, out) || (c.of_reals && wraps_around(made))) return false;
    const bool is_guess = !call_.results.empty() && call_.results[0].guesses_dtype;
    for (size_t o = 0; o < b_.operands.size() && out == ReduceOp::sum; ++o) {
      const bool is_addend = b_.operands[o].defined() && row.operands[o].is_partial();
      if (!is_addend) continue;
      const DType from = b_.operands[o].dtype();
      if (!sum_survives(from, made)) return false;
      if (is_guess && wraps_around(from) && !sum_survives(from, DType::i64)) return false;
    }
    return true;
  }

  DType dtype_of_result(size_t result) const {
    if (result < call_.results.size()) return call_.results[result].dtype;
    if (const int64_t asked = call_.int_or("dtype", -1); asked >= 0)
      return static_cast<DType>(asked);
    return likely_dtype(b_.operands);
  }

  /// Only the operand's current partial; there are too many to list all.
  void add_ignore(const Clause& c) {
    for (size_t o = 0; o < b_.operands.size(); ++o) {
      const auto term = static_cast<int>(b_.term_of_operand[o] - b_.notation->operands.data());
      if (std::ranges::find(c.operands, term) == c.operands.end() || !b_.operands[o].defined())
        continue;
      const Placement& p = b_.operands[o].placement(axis_);
      if (!p.is_partial()) continue;
      Row row;
      row.operands = untouched();
      row.operands[o] = p;
      row.results.resize(b_.result_dims.size());
      add(std::move(row));
    }
  }

  void add(Row row) {
    if (std::ranges::find(rows_, row) == rows_.end()) rows_.push_back(std::move(row));
  }

  const Bound& b_;
  const OpCall& call_;
  int axis_;
  int ranks_;
  std::vector<Row> rows_;
};

/// The size of a dim of factors, from an operand that has it too.
/// -1 if no operand has the product, or two have different sizes for it.
int64_t product_size(const Bound& bound, const Bound::Place& place) {
  int64_t found = -1;
  for (size_t o = 0; o < bound.operands.size(); ++o) {
    for (size_t d = 0; d < bound.operand_dims[o].size(); ++d) {
      const auto& p = bound.operand_dims[o][d];
      if (!p.product || p.letter != place.letter || p.inner != place.inner) continue;
      const int64_t size = bound.operands[o].shape()[d];
      if (found >= 0 && size != found) return -1;
      found = size;
    }
  }
  return found;
}

}  // namespace

bool can_be_partial(DType dtype, ReduceOp op) {
  using enum ReduceOp;
  switch (dtype) {
    case DType::boolean:
      return op == max || op == min || op == band || op == bor || op == bxor;
    case DType::c32:
    case DType::c64:
    case DType::c128:
      return op == sum;
    case DType::u8:
    case DType::i8:
    case DType::i16:
    case DType::i32:
    case DType::i64:
    case DType::u16:
    case DType::u32:
    case DType::u64:
      return op != avg;
    default:
      return op != band && op != bor && op != bxor;
  }
}

bool wraps_around(DType dtype) {
  return dtype != DType::boolean && can_be_partial(dtype, ReduceOp::band);
}

bool sum_survives(DType from, DType to) {
  constexpr int64_t kLong = 8;
  if (!wraps_around(from)) return !wraps_around(to);
  if (dtype_bytes(from) >= kLong) return true;
  return wraps_around(to) && dtype_bytes(to) <= dtype_bytes(from);
}

std::vector<Row> expand(const Bound& bound, const OpCall& call, int axis) {
  return Expander(bound, call, axis).run();
}

std::vector<Refusal> refusals(const Bound& bound, const OpCall& call, int axis) {
  return Expander(bound, call, axis).refusals();
}

std::vector<ResultMeta> infer_shapes(const Bound& bound) {
  std::vector<ResultMeta> out;
  for (size_t r = 0; r < bound.result_dims.size(); ++r) {
    ResultMeta meta;
    for (const auto& p : bound.result_dims[r]) {
      if (p.letter < 0) {
        meta.shape.push_back(1);
        continue;
      }
      const auto& l = bound.letters[static_cast<size_t>(p.letter)];
      meta.shape.push_back(p.product ? product_size(bound, p) : l.resized ? -1 : l.size);
    }
    const bool unknown = std::ranges::any_of(bound.result_dims[r], [&](const auto& p) {
      return p.product && product_size(bound, p) < 0;
    });
    if (unknown) return {};
    meta.stride = contiguous_stride(meta.shape);
    meta.dtype = likely_dtype(bound.operands);
    meta.guesses_dtype = true;
    out.push_back(std::move(meta));
  }
  return out;
}

}  // namespace tessera::rules
