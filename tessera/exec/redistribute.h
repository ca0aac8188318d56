#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "tessera/sharding/sharding.h"

/// Moves local tensors from one sharding to another.
///
///   at::Tensor rows = ...;                                  // my part of "tp=4 : S0 : 8x16"
///   at::Tensor columns = redistribute(rows, from, to);      // my part of "tp=4 : S1 : 8x16"
///
/// Every rank of the mesh calls it with the same shardings. The plan and its buffers' layout are
/// made at the first call and kept. Ranks outside the mesh pass and get an empty tensor.
///
/// No autograd here: tensors are taken as data.
namespace tessera::exec {

struct RedistributeOptions {
  /// Cast to this before the first message, and to the target's dtype after the last; by default
  /// the target's dtype if it is the smaller one, except that partial values are not cast between
  /// other types than floating point ones before they are reduced.
  std::optional<at::ScalarType> wire_dtype = std::nullopt;
  /// The result may share memory with the input (a slice is then a view). Without it, the result is
  /// fresh unless there is nothing to do.
  bool may_alias = false;
  /// The input is given up and may be overwritten (an all_reduce then needs no copy).
  bool consume = false;
};

at::Tensor redistribute(const at::Tensor& local, const Sharding& from, const Sharding& to,
                        const RedistributeOptions& options = {});

/// A redistribution under way. The input must not change until wait(). Dropping it unwaited is
/// allowed; the messages then still run to their end.
class Pending {
 public:
  Pending() = default;
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();

  /// Blocks (CUDA: orders the current stream) and gives the new local tensor. Once.
  at::Tensor wait();
  bool done() const;  ///< wait() would not block

 private:
  friend Pending redistribute_async(const at::Tensor&, const Sharding&, const Sharding&,
                                    const RedistributeOptions&);
  struct State;
  std::unique_ptr<State> state_;
};

/// Starts the move; what precedes the last message has happened when it returns.
Pending redistribute_async(const at::Tensor& local, const Sharding& from, const Sharding& to,
                           const RedistributeOptions& options = {});

}  // namespace tessera::exec
