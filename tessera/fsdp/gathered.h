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
  /// Starts the all_gather of the shards in the layout's types. `pieces` are this rank's, by slot:
  /// flat tensors that follow each other in it.
  Gathered(std::shared_ptr<const FlatLayout> layout, const DataMesh& mesh,
           const Collectives& collectives, const std::vector<std::vector<at::Tensor>>& pieces,
           const std::shared_ptr<GatheredBytes>& bytes, bool async);

  /// The parameters are there when it returns.
  void wait();
  const at::Tensor& whole(size_t param) const { return wholes_[param]; }
  /// False if shards were written to since.
  bool is_current() const;

 private:
  std::shared_ptr<const FlatLayout> layout_;
  at::Tensor memory_;
  std::vector<at::Tensor> pieces_;
  std::vector<int64_t> versions_;  // of the pieces
  std::vector<at::Tensor> sent_;   // the pieces by slot, joined and cast where need be
  std::vector<at::Tensor> slots_;
  std::vector<at::Tensor> wholes_;
  WorkPtr work_;
  bool copied_out_ = false;
};

}  // namespace tessera::fsdp
