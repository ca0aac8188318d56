#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/api.h"

namespace tessera {

class Scanner;

/// How partial values are reduced to the value.
enum class ReduceOp : uint8_t { sum, avg, max, min, product, band, bor, bxor };

TESSERA_API std::string_view reduce_op_name(ReduceOp op);
/// "sum", "avg", "max", "min", "product", "band", "bor", "bxor"; the error for others lists them.
TESSERA_API ReduceOp reduce_op_from_name(std::string_view name);

/// The placement of a tensor on one mesh axis. [10] over an axis of 4 ranks:
///
///   R                Replicate()              every rank holds all 10
///   S0               Shard(0)                 3,3,3,1 as torch.chunk; [2] over 4 gives 1,1,0,0
///   S0[4,3,2,1]      RaggedShard(0, {4,..})   exactly the listed sizes
///   SS0(2)           StridedShard(0, 2)       split in 2 pieces of 5, every piece chunked over the
///                                             ranks (2,2,1,0), a rank's parts concatenated:
///                                             4,4,2,0
///   P(sum)           Partial(sum)             every rank holds 10 addends
///
/// A ragged shard inside another shard of the same dim lists the sizes for each outer piece in
/// turn.
class TESSERA_API Placement {
 public:
  enum class Kind : uint8_t { replicate, shard, strided, ragged, partial };

  Placement() = default;  ///< Replicate()

  Kind kind() const { return kind_; }
  bool is_replicate() const { return kind_ == Kind::replicate; }
  bool is_partial() const { return kind_ == Kind::partial; }
  /// Shard, StridedShard or RaggedShard.
  bool is_sharded() const { return !is_replicate() && !is_partial(); }
  /// One of those, on this dim.
  bool is_sharded(int dim) const { return is_sharded() && dim_ == dim; }
  bool is_plain_shard() const { return kind_ == Kind::shard; }

  int dim() const { return dim_; }                   ///< of a shard
  int64_t split() const { return split_; }           ///< of a strided shard
  ReduceOp reduce_op() const { return reduce_op_; }  ///< of a partial
  std::span<const int64_t> sizes() const;            ///< of a ragged shard

  /// The same placement on another dim.
  Placement on_dim(int dim) const;

  std::string to_text() const;
  static Placement parse(std::string_view text);
  static Placement scan(Scanner& scanner);

  bool operator==(const Placement& other) const;
  size_t hash() const;

  friend Placement Shard(int dim);
  friend Placement StridedShard(int dim, int64_t split);
  friend Placement RaggedShard(int dim, std::vector<int64_t> sizes);
  friend Placement Partial(ReduceOp op);

 private:
  Kind kind_ = Kind::replicate;
  ReduceOp reduce_op_ = ReduceOp::sum;
  int dim_ = 0;
  int64_t split_ = 1;
  std::shared_ptr<const std::vector<int64_t>> sizes_;
};

inline Placement Replicate() { return {}; }
/// A negative dim counts from the end once the tensor is known.
TESSERA_API Placement Shard(int dim);
TESSERA_API Placement StridedShard(int dim, int64_t split);
TESSERA_API Placement RaggedShard(int dim, std::vector<int64_t> sizes);
TESSERA_API Placement Partial(ReduceOp op = ReduceOp::sum);

TESSERA_API std::string placements_text(std::span<const Placement> placements);
TESSERA_API std::vector<Placement> parse_placements(std::string_view text);

}  // namespace tessera

template <>
struct std::hash<tessera::Placement> {
  size_t operator()(const tessera::Placement& p) const { return p.hash(); }
};
