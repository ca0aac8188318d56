#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/rules/op_call.h"

/// The parsed notation of a rule. See docs/rule_notation.md; in short:
///
///   terms -> terms ; clause ; clause | the next alternative
///
///   a term, one per tensor argument and result
///     mk      one dim each; lower case may be sharded, upper case must be whole (unsharded)
///     *       all remaining dims, aligned from the right between operands, each may be sharded
///     X..     a run of remaining dims, whole (x..: each may be sharded)
///     1 1..   a dim of size 1, as many of them as the run has dims
///     (gC)    a dim that is a product of factors, of which the first may be sharded
///     .       no dims        _   anything, replicated, without effect     &  the same, unchanged
///     +t      addend         ~t  broadcast to these dims
///     t?      optional       [t]  every tensor of a list
///     t!k     a result that does not depend on k
///   a letter of an operand that a result lacks makes that result Partial(sum)
namespace tessera::rules {

struct Dim {
  enum class Kind : uint8_t { letter, star, run, one, ones, product };
  Kind kind = Kind::letter;
  char letter = 0;  ///< of a product, the first factor
  bool whole = false;
  char inner = 0;  ///< of a product, the second factor
};

struct Term {
  std::vector<Dim> dims;
  bool anything = false;  // _ or &
  bool as_is = false;     // &
  bool addend = false;
  bool broadcast = false;  // ~
  bool optional = false;
  bool list = false;
  std::string free_of;  // letters on which a result does not depend: it is replicated there
  bool has(Dim::Kind kind) const;
};

/// `groups=1`, `ceil_mode` (true, nonzero, or not empty), `dtype=none`.
struct Condition {
  std::string attribute;  ///< empty: always
  std::string value;      ///< empty: "is set"
  bool negated = false;
  bool holds(const OpCall& call) const;
};

struct Clause {
  enum class Kind : uint8_t {
    pass,      ///< partials of `ops` pass through the operands together; others are replicated
    ignore,    ///< values are not read: any partial is allowed, the result is replicated
    whole,     ///< dims of an attribute, or letters, must not be sharded
    drop,      ///< the same, and results with a star lose them
    reduce,    ///< may be sharded: results without the dim become Partial(ops[0])
    weigh,     ///< results are weighted by the local fraction of the letters (gradients of means)
    exact,     ///< no broadcasting: letters of two sizes are whole
    aligned,   ///< the star has the same number of dims in all operands
    rank,      ///< a run has as many dims as the attribute lists
    size,      ///< a letter's size is the attribute
    even,      ///< the letters may only be sharded evenly
    nonempty,  ///< no rank may have an empty part of the letters (if none is named: of any)
    local,     ///< a size attribute becomes the local one of a letter, operand or result
    flag,      ///< the letters may be sharded if the flag of this name is set
    align,     ///< parts of these operands must have strides that are multiples of this many bytes
    multiple,  ///< the letters and their parts are multiples of this many elements
    kernel,    ///< shardable if a kernel of this name exists (`mask v`: of the name "mask");
               ///< without letters: the rows that the kernel itself declares
    guard,     ///< `if`: when the alternative applies
  };
  Kind kind{};
  std::vector<ReduceOp> ops;
  bool swaps = false;         // order-: max becomes min
  bool all_if_empty = false;  // $dim!: an empty list means all dims
  bool of_reals = false;      // order, blend: not where results are integers, which wrap or round
  std::vector<int> operands;
  std::string attribute;
  std::string name;     // of a kernel or flag
  std::string letters;  // '*' means the star's dims
  int of_operand = -1, of_dim = -1, of_result = -1;
  int count = 0;  // align: bytes; multiple: elements
  Condition condition;

  /// `kernel name` without letters.
  bool declares_rows() const {
    return kind == Kind::kernel && letters.empty() && attribute.empty();
  }
};

struct Notation {
  std::string text;
  std::vector<Term> operands;
  std::vector<Term> results;
  std::vector<Clause> clauses;
};

/// All alternatives of a rule. Throws InvalidArgument that shows the text and the position.
std::vector<Notation> parse_notation(std::string_view text);

}  // namespace tessera::rules
