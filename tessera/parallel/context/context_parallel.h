#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/parallel/context/block_attention.h"
#include "tessera/parallel/context/sequence_order.h"

/// Context parallelism: attention whose sequence is sharded over mesh axes, equal to attention on
/// the whole tensors. Nothing of size sequence x sequence is ever held.
///
///   auto mesh = init_device_mesh("dp=2,cp=4");
///   auto order = SequenceOrder::head_tail(length, 4);      // equal work under a causal mask
///   auto x = distribute_tensor(reorder_sequence(tokens, 1, order), mesh, {Shard(0), Shard(1)});
///   ...                                                    // q, k, v: B x H x S x D, S0,S2
///   auto y = context_parallel_attention(q, k, v, {.is_causal = true}, {.order = order});
///
/// or, with a model that is not to be changed:
///
///   ContextParallel scope("cp", {.order = order});
///   model->forward(x);                       // its scaled_dot_product_attention does the same
///
/// Methods, for n ranks, S rows, H heads of width D on keys and values:
///
///   ring        (k, v) rotate n - 1 times while the block at hand is computed. Holds 2 blocks of
///               S/n rows. Any number of heads.
///   all_gather  k and v are gathered once: S rows of each are held. Gradients are
///               reduce-scattered.
///   all_to_all  four all_to_alls move the shards from rows to heads and back; each rank attends
///               with H/n heads over the whole sequence. Sends the least for large n; needs n
///               heads.
///
/// Rows need not divide evenly, ranks may be without rows. Heads of keys may be fewer than of
/// queries (grouped queries).
namespace tessera {

enum class ContextMethod { ring, all_gather, all_to_all };

TESSERA_API std::string_view context_method_name(ContextMethod method);
TESSERA_API ContextMethod context_method_from_name(std::string_view name);

struct TESSERA_API ContextParallelOptions {
  ContextMethod method = ContextMethod::ring;
  /// The order of the rows of queries, keys and values. A query attends by position, not by row.
  SequenceOrder order = {};
  /// Documents that attend only within themselves, by position: offsets {0, 5, 12} are documents of
  /// 5 and 7. One list for all batch rows, or one for each row of the global batch.
  std::vector<parallel::DocumentOffsets> documents = {};
  AttentionKernel kernel = AttentionKernel::automatic;
};

/// The arguments of scaled_dot_product_attention.
struct TESSERA_API AttentionOptions {
  bool is_causal = false;
  std::optional<double> scale = std::nullopt;  ///< default: 1 / sqrt(D)
  /// bool (true: attend) or added to the scores; broadcasts to B x H x queries x keys; rows and
  /// columns are in the order of the tensors. Plain (the whole mask, equal on every rank) or
  /// sharded. Rows are used where the queries are; gets no gradient. all_to_all takes masks that
  /// are equal for all queries (size 1 in dim -2).
  at::Tensor mask = {};
  /// A mask computed tile by tile from positions, for masks that should not be held.
  MaskFunction mask_function = {};
};

/// query: B x H x S x D, sharded; key, value: B x Hkv x T x D and E, sharded over T. Axes may also
/// shard batch and heads, equally in all three. The result is sharded like the query.
/// Differentiable once. Throws on shardings that do not fit, and names the one to redistribute to.
TESSERA_API at::Tensor context_parallel_attention(const at::Tensor& query, const at::Tensor& key,
                                                  const at::Tensor& value,
                                                  const AttentionOptions& attention = {},
                                                  const ContextParallelOptions& options = {});

/// While it is alive, scaled_dot_product_attention on the calling thread is
/// context_parallel_attention if its tensors are DTensors and the axis shards the sequence of its
/// keys. With an order or documents it is so for all sharded tensors, because rows have that
/// order also where they were gathered. Other calls are not affected. Dropout is an error. Guards
/// nest: the innermost applies.
class TESSERA_API ContextParallel {
 public:
  explicit ContextParallel(std::string axis, ContextParallelOptions options = {});
  ~ContextParallel();
  ContextParallel(const ContextParallel&) = delete;
  ContextParallel& operator=(const ContextParallel&) = delete;

  const std::string& axis() const { return axis_; }
  const ContextParallelOptions& options() const { return options_; }
  /// Whether rows are in the order of positions and in one document.
  bool masks_by_row() const;
  /// nullptr: none.
  static const ContextParallel* current();

 private:
  std::string axis_;
  ContextParallelOptions options_;
  const ContextParallel* outer_;
};

}  // namespace tessera
