#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/base/api.h"
#include "tessera/sharding/placement.h"

/// How a module is split over one mesh axis: tensor and sequence parallelism on modules as they
/// are. See parallelize_module.h for the plan that assigns styles, and docs/parallel.md.
///
/// C++ modules have no hooks, so a style is attached to the module's weight, and takes effect in
/// the op that uses it: linear, matmul, mm, addmm, embedding (also embedding_bag, whose table is
/// gathered if it is split by vocabulary), convolutions, layer_norm, rms_norm
/// and, for norms that a program writes out, the product with the weight. It brings the op's input
/// to the layout that the style needs, and the result to its output layout; both are recorded by
/// autograd. A layout is a placement on the style's axis; other axes of a tensor keep theirs.
namespace tessera {

namespace parallel {

/// A style for one kind of module, as plain data; built by the functions below.
struct TESSERA_API Style {
  enum class Kind : uint8_t { colwise, rowwise, sequence, prepare_input, prepare_output };

  Kind kind = Kind::colwise;
  std::optional<Placement> input_layout = std::nullopt;   ///< of a plain tensor that comes in
  std::optional<Placement> desired_input = std::nullopt;  ///< of kind prepare_input
  std::optional<Placement> output_layout = std::nullopt;  ///< of the result
  int64_t parts = 1;       ///< fused matrices in one weight, each split over the ranks
  int64_t heads = 0;       ///< 0: no heads; else ranks hold whole heads
  bool in_by_out = false;  ///< the weight is [in, out], as mm takes it, not [out, in]
  int sequence_dim = 1;    ///< of kind sequence
  int64_t overlap = 1;     ///< pieces; 1: communication and product follow each other

  std::string to_text() const;
};

}  // namespace parallel

struct TESSERA_API ColwiseOptions {
  /// The layout of a plain tensor that the module is given. Sharded ones have theirs.
  Placement input_layout = Replicate();
  /// The default is the op's own: sharded over the features (Linear, Embedding) or channels.
  std::optional<Placement> output_layout = std::nullopt;
  /// A weight that holds several matrices one below the other, of which each rank has its part of
  /// each: 3 for a fused QKV projection, 2 for gate and up of a gated MLP. [6, in] over 2 ranks, 3
  /// parts: rows 0,2,4 and rows 1,3,5. The model splits the result as before (chunk, split).
  int64_t parts = 1;
  /// The heads that each part is made of: must be a multiple of the ranks, so that each has whole
  /// ones. Key and value heads may also be a divisor of the ranks (grouped-query attention with
  /// fewer KV heads than ranks): the weight is then replicated.
  int64_t heads = 0;
  /// The weight is [in, out]: used as mm(x, weight) (GPT-2's Conv1D), or by embedding in a module
  /// that is not torch::nn::Embedding.
  bool in_by_out = false;
  /// Async tensor parallelism, for an input [batch, sequence, features] that is sharded over the
  /// sequence: gathered in so many pieces of the batch, each multiplied while the next is in flight
  /// (overlapped_linear.h). 1: one message, then one product.
  int64_t overlap = 1;
};

/// The output features of a module over the ranks: rows of a Linear's [out, in] weight and of its
/// bias, columns of an Embedding's, output channels of a convolution. The input is replicated.
TESSERA_API parallel::Style ColwiseParallel(const ColwiseOptions& options = {});

struct TESSERA_API RowwiseOptions {
  /// The layout of a plain tensor that the module is given; the default is sharded over the
  /// features or channels, for Embedding replicated.
  std::optional<Placement> input_layout = std::nullopt;
  Placement output_layout = Replicate();
  bool in_by_out = false;
  /// The same for output_layout Shard(1): each piece is reduced while the next is multiplied.
  int64_t overlap = 1;
};

/// The input features over the ranks: columns of a Linear's weight, the rows (vocabulary) of an
/// Embedding's. The results are addends, added up where they arise: to the output layout Replicate
/// by all_reduce, to Shard(1), the sequence, by reduce_scatter. The bias is added once.
TESSERA_API parallel::Style RowwiseParallel(const RowwiseOptions& options = {});

struct TESSERA_API SequenceOptions {
  int sequence_dim = 1;  ///< of [batch, sequence, features]
};

/// The sequence over the ranks, for modules that act on each position alone: LayerNorm, RMSNorm,
/// Dropout. Their parameters are replicated; gradients are added up at the end of backward.
TESSERA_API parallel::Style SequenceParallel(const SequenceOptions& options = {});

/// Brings the input of the first op that uses one of the module's own parameters to `desired`.
TESSERA_API parallel::Style PrepareModuleInput(Placement input_layout, Placement desired);
/// Brings the result of the op that uses the module's weight to `desired`.
TESSERA_API parallel::Style PrepareModuleOutput(Placement desired);

}  // namespace tessera
