#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <vector>

#include "tessera/fsdp/collectives.h"
#include "tessera/fsdp/data_mesh.h"
#include "tessera/fsdp/flat_layout.h"

/// The whole parameters of a group while they are needed.
namespace tessera::fsdp {

/// Gathered bytes of one rank, counted from allocation until the memory is free again, whoever
/// still holds it.
struct GatheredBytes {
  std::atomic<int64_t> alive{0};
  std::atomic<int64_t> peak{0};
};

class Gathered {
 public:
  /// Starts the all_gather of the shards, one flat tensor a slot, in the layout's types.
  Gathered(const FlatLayout& layout, const DataMesh& mesh, const Collectives& collectives,
           std::vector<at::Tensor> pieces, const std::shared_ptr<GatheredBytes>& bytes, bool async);

  /// The parameters are there when it returns.
  void wait(const FlatLayout& layout);
  const at::Tensor& whole(size_t param) const { return wholes_[param]; }
  /// False if shards were written to since.
  bool is_current() const;

 private:
  at::Tensor memory_;
  std::vector<at::Tensor> pieces_;
  std::vector<int64_t> versions_;  // of the pieces
  std::vector<at::Tensor> sent_;   // the pieces, cast where the layout says so
  std::vector<at::Tensor> slots_;
  std::vector<at::Tensor> wholes_;
  WorkPtr work_;
  bool copied_out_ = false;
};

}  // namespace tessera::fsdp
