#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/exec/redistribute.h"
#include "tessera/sharding/sharding.h"

/// Sharded tensors. A DTensor is an ordinary at::Tensor that reports the global shape and stores
/// this rank's part; every op, module and optimizer accepts it.
///
///   auto mesh = init_device_mesh("cpu", {2, 4}, {"dp", "tp"});
///   auto x = distribute_tensor(full, mesh, {Shard(0), Replicate()});
///   auto y = torch::mm(x, w);                       // runs on the local parts
///   y = redistribute(y, {Replicate(), Shard(1)});   // changes its placements
///   auto part = to_local(y);                        // this rank's tensor
///   auto whole = full_tensor(y);                    // the full tensor, on every rank
///
/// from_local, to_local and redistribute are differentiable, to any order. What makes or moves a
/// tensor must be called on all ranks of the mesh; queries, to_local and to_text send nothing.
namespace tessera {

TESSERA_API bool is_dtensor(const at::Tensor& tensor);

/// The sharding of a DTensor; throws for a plain tensor.
TESSERA_API const Sharding& sharding(const at::Tensor& tensor);
/// One placement per mesh axis, in mesh order: from_local(to_local(x), device_mesh(x),
/// placements(x)) equals x. If axes shard a dim in another order, strided or ragged shards express
/// it (sharding/mesh_order.h); throws NotSupported if they cannot.
TESSERA_API std::vector<Placement> placements(const at::Tensor& tensor);
TESSERA_API const DeviceMesh& device_mesh(const at::Tensor& tensor);
/// Shape of this rank's part, and the global index of its first element (the size of a dim in which
/// it is empty). For other ranks see sharding/local_shape.h.
TESSERA_API std::span<const int64_t> local_shape(const at::Tensor& tensor);
TESSERA_API std::span<const int64_t> local_offset(const at::Tensor& tensor);

struct TESSERA_API FromLocalOptions {
  /// Global shape; by default the sum of the local sizes over the shards. Local parts that are not
  /// as torch.chunk splits them are measured and described exactly (a ragged shard), which costs a
  /// message.
  std::optional<std::vector<int64_t>> shape = std::nullopt;
  std::optional<std::vector<int64_t>> stride = std::nullopt;
  /// Compares sizes, dtype and, on replicated axes, values between ranks; throws if they differ.
  bool run_check = false;
  /// Asserts that all parts have equal sizes, which saves the message that measures them.
  bool even = false;
  /// Placements of the local tensor's gradient; by default those of the tensor, with Partial
  /// replaced by Replicate.
  std::vector<Placement> grad_placements = {};
};

/// The DTensor whose part on this rank is `local`. Shares its memory if it has the strides of the
/// sharding (row-major unless `stride` is given), otherwise copies.
TESSERA_API at::Tensor from_local(const at::Tensor& local, const DeviceMesh& mesh,
                                  std::vector<Placement> placements,
                                  const FromLocalOptions& options = {});

struct TESSERA_API ToLocalOptions {
  /// Placements of the gradient that arrives for the local tensor; by default those of the tensor,
  /// with Partial replaced by Replicate.
  std::vector<Placement> grad_placements = {};
};

/// This rank's part; shares memory.
TESSERA_API at::Tensor to_local(const at::Tensor& tensor, const ToLocalOptions& options = {});

struct TESSERA_API RedistributeOptions {
  std::optional<at::ScalarType> forward_dtype = std::nullopt;   ///< cast before communication
  std::optional<at::ScalarType> backward_dtype = std::nullopt;  ///< cast of the gradient
};

/// The same values with other placements. An axis cannot become Partial: throws.
TESSERA_API at::Tensor redistribute(const at::Tensor& tensor, std::vector<Placement> placements,
                                    const RedistributeOptions& options = {});
/// To another mesh of the same world; must be called on every rank of both.
TESSERA_API at::Tensor redistribute(const at::Tensor& tensor, const DeviceMesh& mesh,
                                    std::vector<Placement> placements,
                                    const RedistributeOptions& options = {});
/// To any sharding of the same shape, including its own order of axes.
TESSERA_API at::Tensor redistribute(const at::Tensor& tensor, const Sharding& to,
                                    const RedistributeOptions& options = {});

/// A redistribution in flight. The tensor must not be modified before wait(). It may be destroyed
/// without waiting; the messages then still complete.
class TESSERA_API PendingTensor {
 public:
  PendingTensor(at::Tensor tensor, Sharding to, exec::Pending pending,
                std::optional<at::ScalarType> backward_dtype);

  /// Blocks (CUDA: orders the current stream) and returns the redistributed tensor, with autograd.
  /// May be called once.
  at::Tensor wait();
  bool done() const;  ///< whether wait() would not block

 private:
  at::Tensor tensor_;
  Sharding to_;
  exec::Pending pending_;
  std::optional<at::ScalarType> backward_dtype_;
};

/// Starts the messages and returns; compute, then call wait().
///
///   PendingTensor rows = redistribute_async(x, {Shard(0)});
///   auto y = torch::mm(a, b);
///   auto z = y + rows.wait();
TESSERA_API PendingTensor redistribute_async(const at::Tensor& tensor,
                                             std::vector<Placement> placements,
                                             const RedistributeOptions& options = {});
TESSERA_API PendingTensor redistribute_async(const at::Tensor& tensor, const Sharding& to,
                                             const RedistributeOptions& options = {});

/// The full tensor as a plain one, on every rank.
TESSERA_API at::Tensor full_tensor(const at::Tensor& tensor, const ToLocalOptions& options = {});

struct TESSERA_API DistributeOptions {
  /// The rank, as an index into the mesh, whose data is used. No value: each rank uses its own
  /// data, which must be equal on all ranks, and nothing is sent.
  std::optional<int> source = 0;
};

/// A leaf DTensor from a full tensor.
TESSERA_API at::Tensor distribute_tensor(const at::Tensor& full, const DeviceMesh& mesh,
                                         std::vector<Placement> placements,
                                         const DistributeOptions& options = {});

/// "DTensor dp=2,tp=4 : S0,R : 8x16, local 4x16 at 4,0 on rank 5" and the local values; for a plain
/// tensor libtorch's text. libtorch cannot print a sharded tensor. No communication.
TESSERA_API std::string to_text(const at::Tensor& tensor);
TESSERA_API void print(const at::Tensor& tensor);  ///< to_text to stdout

}  // namespace tessera
