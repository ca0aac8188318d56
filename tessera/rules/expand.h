#pragma once

#include <vector>

#include "tessera/rules/notation.h"
#include "tessera/rules/rule.h"

/// Expands the notation of a rule, for the metadata of a call, to the rows for one axis.
///
///   mk, kn -> mn   with 8x6, 6x4
///     m: S0,R -> S0     k: S1,S0 -> P(sum)     n: R,S1 -> S1     and what `linear` lets through
///
/// A letter may be sharded in any way: evenly, unevenly, with empty shards; strided or ragged if an
/// operand already is. An operand of size 1 where the letter is longer is broadcast: it stays R.
namespace tessera::rules {

/// The letters of one call: their sizes and positions.
struct Bound {
  struct Letter {
    int key = 0;
    int64_t size = -1;  // -1: unknown
    bool whole = false;
    bool even = false;
    bool nonempty = false;
    int64_t multiple = 1;                 // every part is a multiple of this many elements
    bool dropped = false;                 // results lose the dim
    bool resized = false;                 // results may have another size
    const std::string* kernel = nullptr;  // shardable only if a kernel of this name exists
    const std::string* flag = nullptr;    // shardable only if this flag is set
    bool weighed = false;
    std::optional<ReduceOp> reduce = {};
  };
  struct Place {
    int letter = -1;  // -1: a dim of size 1
    bool product = false;
    char inner = 0;
  };
  const Notation* notation = nullptr;
  std::vector<Sharding> operands;
  std::vector<const Term*> term_of_operand;
  std::vector<std::vector<Place>> operand_dims;
  std::vector<std::vector<Place>> result_dims;
  std::vector<const Term*> term_of_result;
  std::vector<Letter> letters;
  bool keeps_dim = false;

  /// The dim of an operand that a letter refers to; -1 if none or if it is broadcast there.
  int dim_of(int operand, int letter) const;
  int dim_of_result(int result, int letter) const;
};

/// The first alternative that matches the call; nullopt if none does (then only R is legal).
std::optional<Bound> bind(const std::vector<Notation>& alternatives, const OpCall& call);

std::vector<Row> expand(const Bound& bound, const OpCall& call, int axis);

/// The letters that must not be sharded over this axis, as the rows that they would have given.
std::vector<Refusal> refusals(const Bound& bound, const OpCall& call, int axis);

std::vector<ResultMeta> infer_shapes(const Bound& bound);

/// A rule from its notation.
Rule make_rule(std::string_view op, std::string_view text);

/// Whether a Partial(op) of this element type can be passed through.
bool can_be_partial(DType dtype, ReduceOp op);

/// Whether arithmetic on this type wraps around: 3 - 5 of uint8 is 254.
bool wraps_around(DType dtype);

/// Whether addends that are converted to another type add up to the converted sum. Not short
/// integers to longer types: 200 + 100 of uint8 is 44. Of 8 bytes, sums are taken not to overflow.
/// Not floats to integers, which drops a fraction of each.
bool sum_survives(DType from, DType to);

}  // namespace tessera::rules
