#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "tessera/base/api.h"
#include "tessera/sharding/sharding.h"

/// Redistributes local tensors from one sharding to another.
///
///   at::Tensor rows = ...;                                  // my part of "tp=4 : S0 : 8x16"
///   at::Tensor columns = redistribute(rows, from, to);      // my part of "tp=4 : S1 : 8x16"
///
/// Must be called on every rank of the mesh with the same shardings. The plan and its buffer
/// layouts are computed at the first call and cached. Ranks outside the mesh pass and get an empty
/// tensor.
///
/// No autograd: tensors are treated as data.
namespace tessera::exec {

/// How the local tensor travels; what a program asks for is tessera::RedistributeOptions.
struct TESSERA_API TransferOptions {
  /// Cast to this dtype before the first message, and to the target's after the last. Default: the
  /// target's dtype if it is smaller, except that partial values are not cast before they are
  /// reduced unless both dtypes are floating point.
  std::optional<at::ScalarType> wire_dtype = std::nullopt;
  /// The result may share memory with the input (a slice is then a view). Otherwise it is new
  /// unless there is nothing to do.
  bool may_alias = false;
  /// The input is not needed any more and may be overwritten (saves the copy of an all_reduce).
  bool consume = false;
};

TESSERA_API at::Tensor redistribute(const at::Tensor& local, const Sharding& from,
                                    const Sharding& to, const TransferOptions& options = {});

/// A redistribution in flight. The input must not be modified before wait(). It may be destroyed
/// without waiting; the messages then still complete.
class TESSERA_API Pending {
 public:
  Pending() = default;
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();

  /// Blocks (CUDA: orders the current stream) and returns the new local tensor. May be called once.
  at::Tensor wait();
  bool done() const;  ///< whether wait() would not block

 private:
  friend Pending redistribute_async(const at::Tensor&, const Sharding&, const Sharding&,
                                    const TransferOptions&);
  struct State;
  std::unique_ptr<State> state_;
};

/// Starts the redistribution; everything before the last message is complete when it returns.
TESSERA_API Pending redistribute_async(const at::Tensor& local, const Sharding& from,
                                       const Sharding& to, const TransferOptions& options = {});

}  // namespace tessera::exec
