#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "tessera/dtensor/dispatch/op/op_entry.h"
#include "tessera/dtensor/tensor/lazy.h"

/// Composite ops that compare the dtypes of their arguments do so above the dispatch key of sharded
/// tensors, before any sharded kernel runs:
///
///   conv2d(x, weight, bias)   x is bfloat16; weight and bias are stored as float32, computed as
///                             bfloat16:
///                             "Input type (BFloat16) and bias type (float) should be the same"
///
/// During such an op, lazy tensors report their compute dtype. No change where fully_shard's
/// parameters report it anyway (ComputeDtypeGuard).
namespace tessera::dtensor {

/// Changes the dtype that a sharded tensor reports, in place, for all references to it. The local
/// tensor does not change; only a lazy tensor may report another dtype than its local tensor has.
void report_dtype(const at::Tensor& tensor, at::ScalarType dtype);

/// While it is alive, `tensor` reports `dtype`.
class ReportedDtype {
 public:
  ReportedDtype(const at::Tensor& tensor, at::ScalarType dtype)
      : tensor_(tensor), before_(tensor.scalar_type()) {
    report_dtype(tensor_, dtype);
  }
  ~ReportedDtype() { report_dtype(tensor_, before_); }
  ReportedDtype(const ReportedDtype&) = delete;
  ReportedDtype& operator=(const ReportedDtype&) = delete;

 private:
  at::Tensor tensor_;
  at::ScalarType before_;
};

/// While it is alive, the lazy tensors that were added report their compute dtype.
class ReportComputeDtypes {
 public:
  ReportComputeDtypes() = default;
  ~ReportComputeDtypes() {
    for (const auto& [tensor, before] : changed_) report_dtype(tensor, before);
  }
  ReportComputeDtypes(const ReportComputeDtypes&) = delete;
  ReportComputeDtypes& operator=(const ReportComputeDtypes&) = delete;

  void add(const at::Tensor& tensor);
  void add(const std::optional<at::Tensor>& tensor) {
    if (tensor) add(*tensor);
  }
  template <class Other>
  void add(const Other&) {}
  /// The arguments of an op.
  void add_arguments(const OpEntry& entry, const torch::jit::Stack& stack);

 private:
  c10::SmallVector<std::pair<at::Tensor, at::ScalarType>, 3> changed_;
};

/// The kernel for a composite op that compares dtypes and needs no other special kernel; nullopt
/// for other ops.
std::optional<c10::KernelFunction> dtype_kernel(const c10::OperatorName& name);

/// Extends the error of a failed op on unsharded tensors: names the lazy tensors whose compute
/// dtype differs from their dtype at rest, and why.
void explain_dtypes(c10::Error& error, std::span<const std::shared_ptr<LazyLocal>> used);

/// batch_norm and instance_norm require scale and shift in the dtype of the input or of the running
/// statistics, which stay float32 while parameters compute in a lower one. Casts lazy scale and
/// shift to the dtype of the statistics. `stack` has (input, weight?, bias?, running_mean?, ...).
void match_running_statistics(const OpEntry& entry, torch::jit::Stack& stack);

}  // namespace tessera::dtensor
