#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/parallel/context/attention_kernel.h"
#include "tessera/parallel/context/attention_tiles.h"

/// Attention of local queries over keys that arrive in blocks. Each block gives partial results;
/// two of them, over different keys, are merged by their log-sum-exp:
///
///   lse = log(exp(lse1) + exp(lse2));   out = out1 * exp(lse1 - lse) + out2 * exp(lse2 - lse)
///
/// Works on plain tensors and sends nothing. What it holds beyond its arguments: one output and one
/// log-sum-exp per query row (float32 at least), and one tile's result.
namespace tessera {

/// The mask of a tile, computed from positions: bool (true: attend) or added to the scores;
/// broadcasts to batch x heads x queries x keys. The arguments are int64, queries x 1 and 1 x keys,
/// so that a window is `(q - k).abs() < 4`.
using MaskFunction =
    std::function<at::Tensor(const at::Tensor& query_positions, const at::Tensor& key_positions)>;

namespace parallel {

/// Rows of queries or of keys: their positions, and the rows of the mask that belong to them.
struct TESSERA_API RowSet {
  std::vector<Interval> positions;
  std::vector<Interval> mask_rows;
};

struct TESSERA_API BlockProblem {
  RowSet queries = {};
  bool causal = false;
  double scale = 1;
  AttentionKernel kernel = AttentionKernel::automatic;
  std::vector<DocumentOffsets> documents = {};  ///< as in TileProblem
  /// bool or floating; 4 dims; undefined: none. Dim 2 has the local query rows or 1, dim 3 all keys
  /// or 1.
  at::Tensor mask = {};
  MaskFunction mask_function = {};
};

class TESSERA_API BlockAttention {
 public:
  BlockAttention(const BlockProblem& problem, const at::Tensor& query, int64_t value_width);

  void add(const RowSet& keys, const at::Tensor& key, const at::Tensor& value);

  /// In the query's dtype; 0 for rows without a key.
  at::Tensor out() const;
  /// For BlockGradients; 0 for rows without a key.
  at::Tensor log_sum_exp() const;

 private:
  const BlockProblem& problem_;
  at::Tensor query_;
  at::Tensor out_;
  at::Tensor lse_;
};

class TESSERA_API BlockGradients {
 public:
  BlockGradients(const BlockProblem& problem, const at::Tensor& query, const at::Tensor& grad_out,
                 const at::Tensor& out, const at::Tensor& log_sum_exp);

  /// Adds to the gradient of the queries, and to `d_key` and `d_value` (accumulation_dtype).
  void add(const RowSet& keys, const at::Tensor& key, const at::Tensor& value,
           const at::Tensor& d_key, const at::Tensor& d_value);

  at::Tensor query() const;

 private:
  const BlockProblem& problem_;
  at::Tensor query_, grad_out_, out_, lse_;
  at::Tensor d_query_;
};

/// The dtype in which partial results are summed: float64, else float32.
TESSERA_API at::ScalarType accumulation_dtype(at::ScalarType dtype);

}  // namespace parallel
}  // namespace tessera
