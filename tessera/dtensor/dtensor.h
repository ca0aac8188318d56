#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/exec/redistribute.h"
#include "tessera/sharding/sharding.h"

/// Sharded tensors. A DTensor is an ordinary at::Tensor that reports the global shape and holds
/// this rank's part; every op, module and optimizer takes it.
///
///   auto mesh = init_device_mesh("cpu", {2, 4}, {"dp", "tp"});
///   auto x = distribute_tensor(full, mesh, {Shard(0), Replicate()});
///   auto y = torch::mm(x, w);                       // runs on the local parts
///   y = redistribute(y, {Replicate(), Shard(1)});   // says how it should lie
///   auto part = to_local(y);                        // this rank's tensor
///   auto whole = full_tensor(y);                    // all of it, on every rank
///
/// from_local, to_local and redistribute are differentiable, any number of times. Every function
/// here is called on all ranks of the mesh.
namespace tessera {

bool is_dtensor(const at::Tensor& tensor);

/// The sharding of a DTensor; an error for a plain tensor.
const Sharding& sharding(const at::Tensor& tensor);
/// One placement for each axis of the mesh, to be read in mesh order: from_local(to_local(x),
/// device_mesh(x), placements(x)) is x again. Where axes cut a dim in another order, strided and
/// ragged shards say so (sharding/mesh_order.h); NotSupported where they cannot.
std::vector<Placement> placements(const at::Tensor& tensor);
const DeviceMesh& device_mesh(const at::Tensor& tensor);
/// Shape of this rank's part, and the global index of its first element (the dim's size where it
/// holds nothing of the dim). Other ranks': local_shape.h.
std::span<const int64_t> local_shape(const at::Tensor& tensor);
std::span<const int64_t> local_offset(const at::Tensor& tensor);

struct FromLocalOptions {
  /// Global shape; by default the local sizes added up over the shards. Local parts that are not as
  /// torch.chunk cuts are measured and described exactly (a ragged shard), which costs a message.
  std::optional<std::vector<int64_t>> shape = std::nullopt;
  std::optional<std::vector<int64_t>> stride = std::nullopt;
  /// Compare sizes, dtype and, on replicated axes, the values between ranks; throws on a
  /// difference.
  bool run_check = false;
  /// The sizes are known to be even: no message to find out.
  bool even = false;
  /// How the gradient of the local tensor is placed; by default as the tensor, Partial as
  /// Replicate.
  std::vector<Placement> grad_placements = {};
};

/// The DTensor whose part on this rank is `local`, which it shares if it has the strides of the
/// sharding (row-major unless `stride` says otherwise), else copies.
at::Tensor from_local(const at::Tensor& local, const DeviceMesh& mesh,
                      std::vector<Placement> placements, const FromLocalOptions& options = {});

struct ToLocalOptions {
  /// How the gradient that comes back for the local tensor is placed; by default as the tensor,
  /// Partial as Replicate.
  std::vector<Placement> grad_placements = {};
};

/// This rank's part, shared.
at::Tensor to_local(const at::Tensor& tensor, const ToLocalOptions& options = {});

struct RedistributeOptions {
  std::optional<at::ScalarType> forward_dtype = std::nullopt;   ///< cast before the messages
  std::optional<at::ScalarType> backward_dtype = std::nullopt;  ///< cast of the gradient
};

/// The same tensor placed otherwise. Not to Partial: a value cannot be un-reduced by request.
at::Tensor redistribute(const at::Tensor& tensor, std::vector<Placement> placements,
                        const RedistributeOptions& options = {});
/// On another mesh of the same world; every rank of both calls it.
at::Tensor redistribute(const at::Tensor& tensor, const DeviceMesh& mesh,
                        std::vector<Placement> placements, const RedistributeOptions& options = {});
/// To any sharding of the tensor's shape, with an axis order of its own if need be.
at::Tensor redistribute(const at::Tensor& tensor, const Sharding& to,
                        const RedistributeOptions& options = {});

/// A redistribution under way. The tensor must not change until wait(). Dropping it unwaited is
/// allowed; the messages then still run to their end.
class PendingTensor {
 public:
  PendingTensor(at::Tensor tensor, Sharding to, exec::Pending pending,
                std::optional<at::ScalarType> backward_dtype);

  /// Blocks (CUDA: orders the current stream) and gives the tensor as it now lies, with its
  /// gradient. Once.
  at::Tensor wait();
  bool done() const;  ///< wait() would not block

 private:
  at::Tensor tensor_;
  Sharding to_;
  exec::Pending pending_;
  std::optional<at::ScalarType> backward_dtype_;
};

/// Starts the messages and returns; compute, then wait().
///
///   PendingTensor rows = redistribute_async(x, {Shard(0)});
///   auto y = torch::mm(a, b);
///   auto z = y + rows.wait();
PendingTensor redistribute_async(const at::Tensor& tensor, std::vector<Placement> placements,
                                 const RedistributeOptions& options = {});
PendingTensor redistribute_async(const at::Tensor& tensor, const Sharding& to,
                                 const RedistributeOptions& options = {});

/// All of it as a plain tensor, on every rank.
at::Tensor full_tensor(const at::Tensor& tensor, const ToLocalOptions& options = {});

struct DistributeOptions {
  /// Whose data counts, as an index into the mesh's ranks; none: every rank's own (they must
  /// agree), and nothing is sent.
  std::optional<int> source = 0;
};

/// A leaf DTensor from a full tensor.
at::Tensor distribute_tensor(const at::Tensor& full, const DeviceMesh& mesh,
                             std::vector<Placement> placements,
                             const DistributeOptions& options = {});

/// "DTensor dp=2,tp=4 : S0,R : 8x16, local 4x16 at 4,0 on rank 5" and the local values. A plain
/// tensor as libtorch prints it, which itself cannot print a sharded one. Nothing is sent.
std::string to_text(const at::Tensor& tensor);
void print(const at::Tensor& tensor);  ///< to_text to stdout

}  // namespace tessera
