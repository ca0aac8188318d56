#include <algorithm>
#include <numeric>

#include "tessera/rules/expand.h"

namespace tessera::rules {
namespace {

constexpr int kStar = 256;  // + position from the right
constexpr int kRun = 512;   // + letter * 16 + position from the right

class Binder {
 public:
  Binder(const Notation& notation, const OpCall& call, bool last) : call_(call), last_(last) {
    b_.notation = &notation;
  }

  std::optional<Bound> run() {
    for (const auto& c : b_.notation->clauses) {
      if (c.kind == Clause::Kind::guard && !c.condition.holds(call_)) return std::nullopt;
    }
    sizes_from_attributes();
    if (!operands()) return std::nullopt;
    if (has(Clause::Kind::aligned) && star_ranks_differ_) return std::nullopt;
    exact_ = has(Clause::Kind::exact);
    for (size_t i = 0; i < b_.operands.size(); ++i) {
      if (!measure(i) && !last_) return std::nullopt;
    }
    clauses();
    if (!multiples()) return std::nullopt;
    for (const auto& term : b_.notation->results) result(term);
    check_products();
    return std::move(b_);
  }

 private:
  bool has(Clause::Kind kind) const {
    return std::ranges::any_of(b_.notation->clauses, [&](const Clause& c) {
      return c.kind == kind && c.condition.holds(call_);
    });
  }
  int letter(int key) {
    for (size_t i = 0; i < b_.letters.size(); ++i) {
      if (b_.letters[i].key == key) return static_cast<int>(i);
    }
    b_.letters.push_back({.key = key});
    return static_cast<int>(b_.letters.size()) - 1;
  }
  Bound::Letter& at(int letter) { return b_.letters[static_cast<size_t>(letter)]; }

  void sizes_from_attributes() {
    for (const auto& c : b_.notation->clauses) {
      const auto values = call_.ints(c.attribute);
      if (c.kind == Clause::Kind::size && values.size() == 1) {
        at(letter(c.letters[0])).size = values[0];
      }
      if (c.kind == Clause::Kind::rank) {
        const Arg* arg = call_.find(c.attribute);
        if (arg != nullptr && !std::holds_alternative<std::monostate>(*arg)) {
          set_run(c.letters[0], static_cast<int>(values.size()));
        }
      }
    }
  }

  int run_length(char c) const {
    for (const auto& [name, length] : runs_) {
      if (name == c) return length;
    }
    return -1;
  }
  void set_run(char c, int length) {
    if (run_length(c) < 0) runs_.emplace_back(c, length);
  }

  /// A list matches one term in brackets, or as many plain terms as it has tensors.
  bool operands() {
    size_t next = 0;
    const auto& terms = b_.notation->operands;
    for (const auto& arg : call_.args) {
      const auto* one = std::get_if<Sharding>(&arg.value);
      const auto* list = std::get_if<std::vector<Sharding>>(&arg.value);
      if (one == nullptr && list == nullptr) continue;
      if (one != nullptr) {
        if (next == terms.size() || !place(terms[next++], *one)) return false;
        continue;
      }
      const bool shared = next < terms.size() && terms[next].list;
      for (const auto& s : *list) {
        if (next == terms.size() || !place(terms[shared ? next : next++], s)) return false;
      }
      if (shared) ++next;
    }
    return true;
  }

  bool place(const Term& term, const Sharding& sharding) {
    b_.operands.push_back(sharding);
    b_.term_of_operand.push_back(&term);
    b_.operand_dims.emplace_back();
    auto& dims = b_.operand_dims.back();
    if (!sharding.defined()) return term.optional || term.list || term.anything;
    if (term.anything) return true;
    int fixed = 0;
    bool has_star = false;
    char open_run = 0;  // the run that matches what remains
    for (const auto& d : term.dims) {
      if (d.kind == Dim::Kind::star) {
        has_star = true;
      } else if (d.kind == Dim::Kind::run && run_length(d.letter) < 0) {
        open_run = d.letter;
      } else if (d.kind == Dim::Kind::run) {
        fixed += run_length(d.letter);
      } else if (d.kind == Dim::Kind::ones) {
        fixed += runs_.empty() ? 0 : runs_.front().second;
      } else {
        ++fixed;
      }
    }
    int rest = sharding.ndim() - fixed;
    int skip = 0;  // leading letters that an addend of fewer dims lacks
    if (rest < 0) {
      if (!term.addend && !term.broadcast) return false;
      skip = -rest;
      rest = 0;
    }
    if (open_run != 0 && !has_star) {
      set_run(open_run, rest);
    } else if (has_star) {
      star_ranks_differ_ |= star_rank_ >= 0 && star_rank_ != rest;
      star_rank_ = std::max(star_rank_, rest);
    } else if (rest != 0) {
      return false;
    }
    layout(term, has_star ? rest : 0, skip, dims);
    if (static_cast<int>(dims.size()) != sharding.ndim()) return false;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d].letter < 0 && sharding.shape()[d] != 1) return false;
    }
    return true;
  }

  void layout(const Term& term, int star, int skip, std::vector<Bound::Place>& dims) {
    const auto push = [&](Bound::Place p) {
      if (skip > 0) {
        --skip;
      } else {
        dims.push_back(p);
      }
    };
    for (const auto& d : term.dims) {
      switch (d.kind) {
        case Dim::Kind::star:
          for (int k = star; k-- > 0;) push({letter(kStar + k)});
          break;
        case Dim::Kind::run:
        case Dim::Kind::ones: {
          int length = d.kind == Dim::Kind::run ? run_length(d.letter) : -1;
          if (length < 0) length = runs_.empty() ? 0 : runs_.front().second;
          for (int k = length; k-- > 0;) {
            if (d.kind == Dim::Kind::ones) {
              push({});
            } else {
              const int id = letter(kRun + d.letter * 16 + k);
              at(id).whole |= d.whole;
              push({id});
            }
          }
          break;
        }
        case Dim::Kind::one:
          push({});
          break;
        case Dim::Kind::letter:
        case Dim::Kind::product: {
          const int id = letter(d.letter);
          at(id).whole |= d.whole;
          if (d.kind == Dim::Kind::product) at(id).even = true;
          push({id, d.kind == Dim::Kind::product, d.inner});
          break;
        }
      }
    }
  }

  /// Returns false if a letter has two sizes.
  bool measure(size_t operand) {
    bool fits = true;
    const auto& dims = b_.operand_dims[operand];
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d].letter < 0 || dims[d].product) continue;
      auto& l = at(dims[d].letter);
      const int64_t size = b_.operands[operand].shape()[d];
      if (l.size < 0 || (l.size == 1 && !exact_)) {
        l.size = size;
      } else if (size != l.size && (size != 1 || exact_)) {
        if (!l.whole && !exact_) fits = false;
        l.whole = l.resized = true;
      }
      for (size_t e = 0; e < d; ++e) {
        if (dims[e].letter == dims[d].letter) l.whole = true;  // a diagonal
      }
    }
    return fits;
  }

  /// The letters that a clause refers to: by an attribute's dims, or by name.
  std::vector<int> letters_of(const Clause& c) {
    std::vector<int> out;
    if (c.attribute.empty()) {
      for (size_t i = 0; i < b_.letters.size(); ++i) {
        const int key = b_.letters[i].key;
        const bool named = key < kStar ? c.letters.find(static_cast<char>(key)) != std::string::npos
                           : key < kRun ? c.letters.find('*') != std::string::npos
                                        : c.letters.find(static_cast<char>((key - kRun) / 16)) !=
                                              std::string::npos;
        if (named || c.letters.empty()) out.push_back(static_cast<int>(i));
      }
      return out;
    }
    if (b_.operands.empty() || !b_.operands[0].defined()) return out;
    const auto& dims = b_.operand_dims[0];
    const auto ndim = static_cast<int64_t>(dims.size());
    const auto values = call_.ints(c.attribute);
    const bool all = c.kind == Clause::Kind::reduce || c.kind == Clause::Kind::drop ||
                     c.kind == Clause::Kind::nonempty || c.kind == Clause::Kind::kernel ||
                     c.all_if_empty;
    if (values.empty() && all) {
      for (const auto& p : dims) {
        if (p.letter >= 0) out.push_back(p.letter);
      }
    }
    for (int64_t v : values) {
      const int64_t d = v < 0 ? v + ndim : v;
      if (d >= 0 && d < ndim && dims[static_cast<size_t>(d)].letter >= 0) {
        out.push_back(dims[static_cast<size_t>(d)].letter);
      }
    }
    return out;
  }

  void clauses() {
    using Kind = Clause::Kind;
    b_.keeps_dim = call_.bool_or("keepdim", false);
    for (const auto& c : b_.notation->clauses) {
      if (c.kind != Kind::whole && c.kind != Kind::drop && c.kind != Kind::reduce &&
          c.kind != Kind::even && c.kind != Kind::nonempty && c.kind != Kind::kernel &&
          c.kind != Kind::weigh && c.kind != Kind::flag && c.kind != Kind::align) {
        continue;
      }
      if (!c.condition.holds(call_)) continue;
      if (c.kind == Kind::align) {
        align(c);
        continue;
      }
      if (c.declares_rows()) continue;
      if (c.kind == Kind::kernel && c.attribute.empty()) letter(c.letters[0]);
      for (int id : letters_of(c)) {
        auto& l = at(id);
        if (c.kind == Kind::even) l.even = true;
        if (c.kind == Kind::nonempty) l.nonempty = true;
        if (c.kind == Kind::kernel) l.kernel = &c.name;
        if (c.kind == Kind::flag) l.flag = &c.name;
        if (c.kind == Kind::weigh) l.weighed = true;
        if (c.kind == Kind::reduce && !l.reduce) {
          l.reduce = c.ops[0];
          l.whole |= !can_be_reduced(c.ops[0]);
        }
        if (c.kind == Kind::whole || c.kind == Kind::drop) {
          l.whole = true;
          l.resized |= !c.attribute.empty();
        }
        // A result that lacks a named letter was written without it.
        const bool by_name = c.attribute.empty() && l.key < kStar;
        if (c.kind == Kind::drop ||
            ((c.kind == Kind::reduce || c.kind == Kind::kernel) && !by_name))
          l.dropped = true;
      }
    }
  }

  /// No backend multiplies complex numbers; other reductions of them convert to real ones first.
  bool can_be_reduced(ReduceOp op) const {
    if (op != ReduceOp::product) return true;
    return std::ranges::none_of(call_.operands(), [](const Sharding& operand) {
      const DType dtype = operand.dtype();
      return dtype == DType::c32 || dtype == DType::c64 || dtype == DType::c128;
    });
  }

  /// Other strides are multiples of the length of the dim of stride 1, so only that dim must be
  /// sharded in multiples.
  void align(const Clause& c) {
    for (const int operand : c.operands) {
      const auto o = static_cast<size_t>(operand);
      if (o >= b_.operands.size() || !b_.operands[o].defined()) continue;
      const auto stride = b_.operands[o].stride();
      for (size_t d = 0; d < b_.operand_dims[o].size(); ++d) {
        if (stride[d] != 1 || b_.operand_dims[o][d].letter < 0) continue;
        auto& l = at(b_.operand_dims[o][d].letter);
        int64_t elements = c.count / dtype_bytes(b_.operands[o].dtype());
        if (b_.operand_dims[o][d].product && l.size > 0)  // each of the factor holds several
          elements /= std::gcd(elements, b_.operands[o].shape()[d] / l.size);
        l.multiple = std::lcm(l.multiple, elements);
      }
    }
  }

  /// Returns false if a letter is not a multiple of its clause's number in some operand, other than
  /// addends and broadcast ones.
  bool multiples() {
    for (const auto& c : b_.notation->clauses) {
      if (c.kind != Clause::Kind::multiple || !c.condition.holds(call_)) continue;
      for (const int id : letters_of(c)) {
        at(id).multiple = std::lcm(at(id).multiple, int64_t{c.count});
        for (size_t o = 0; o < b_.operands.size(); ++o) {
          if (b_.term_of_operand[o]->broadcast || b_.term_of_operand[o]->addend) continue;
          for (size_t d = 0; d < b_.operand_dims[o].size(); ++d) {
            if (b_.operand_dims[o][d].letter == id && b_.operands[o].shape()[d] % c.count != 0)
              return false;
          }
        }
      }
    }
    return true;
  }

  void result(const Term& term) {
    b_.result_dims.emplace_back();
    b_.term_of_result.push_back(&term);
    auto& dims = b_.result_dims.back();
    layout(term, std::max(star_rank_, 0), 0, dims);
    if (b_.keeps_dim) {
      for (auto& p : dims) {
        if (p.letter >= 0 && at(p.letter).dropped) p = {};
      }
    } else {
      std::erase_if(dims, [&](const auto& p) { return p.letter >= 0 && at(p.letter).dropped; });
    }
  }

  /// A factor that does not divide its dim cannot be sharded.
  void check_products() {
    for (size_t o = 0; o < b_.operands.size(); ++o) {
      for (size_t d = 0; d < b_.operand_dims[o].size(); ++d) {
        const auto& p = b_.operand_dims[o][d];
        if (!p.product) continue;
        auto& l = at(p.letter);
        const int64_t size = b_.operands[o].shape()[d];
        if (l.size <= 0 || (size % l.size != 0 && size != 1)) l.whole = true;
      }
    }
  }

  const OpCall& call_;
  Bound b_;
  std::vector<std::pair<char, int>> runs_;
  int star_rank_ = -1;
  bool star_ranks_differ_ = false;
  bool exact_ = false;
  bool last_ = false;
};

}  // namespace

std::optional<Bound> bind(const std::vector<Notation>& alternatives, const OpCall& call) {
  for (const auto& notation : alternatives) {
    if (auto bound = Binder(notation, call, &notation == &alternatives.back()).run()) return bound;
  }
  return std::nullopt;
}

int Bound::dim_of(int operand, int letter) const {
  const auto o = static_cast<size_t>(operand);
  const auto& dims = operand_dims[o];
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d].letter != letter) continue;
    const int64_t size = letters[static_cast<size_t>(letter)].size;
    const int64_t mine = operands[o].shape()[d];
    const bool full = dims[d].product ? size > 0 && mine % size == 0 : mine == size;
    return full ? static_cast<int>(d) : -1;
  }
  return -1;
}

int Bound::dim_of_result(int result, int letter) const {
  const auto& dims = result_dims[static_cast<size_t>(result)];
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d].letter == letter) return static_cast<int>(d);
  }
  return -1;
}

}  // namespace tessera::rules
