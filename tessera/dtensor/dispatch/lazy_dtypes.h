#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "tessera/dtensor/dispatch/op_entry.h"
#include "tessera/dtensor/lazy.h"

/// Composite ops that compare the dtypes of their arguments do so above the key of sharded tensors,
/// before any kernel of ours runs:
///
///   conv2d(x, weight, bias)   x is bfloat16; weight and bias rest as float32, compute as bfloat16:
///                             "Input type (BFloat16) and bias type (float) should be the same"
///
/// For the time of such an op lazy tensors report the dtype that they are computed with. Where
/// fully_shard's parameters report it anyway (ComputeDtypeGuard), nothing changes.
namespace tessera::dtensor {

/// Changes the dtype that a sharded tensor reports, in place: every handle to it sees it. What it
/// holds stays what it is; only a lazy tensor may report another dtype than its local one has.
void report_dtype(const at::Tensor& tensor, at::ScalarType dtype);

/// While it lives, `tensor` reports `dtype`.
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

/// While it lives, the lazy tensors that were added report the dtype that they are computed with.
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

/// The kernel for a composite op that compares dtypes and does nothing else that needs one; nullopt
/// for other ops.
std::optional<c10::KernelFunction> dtype_kernel(const c10::OperatorName& name);

/// Where an op on unsharded tensors failed: says of lazy tensors that are computed with in another
/// dtype than they rest in that they are, and why.
void explain_dtypes(c10::Error& error, std::span<const std::shared_ptr<LazyLocal>> used);

/// batch_norm and instance_norm take scale and shift in the dtype of the input or of the running
/// statistics, which stay float32 while parameters compute in a lower one: lazy scale and shift are
/// cast to that of the statistics. `stack` has (input, weight?, bias?, running_mean?, ...).
void match_running_statistics(const OpEntry& entry, torch::jit::Stack& stack);

}  // namespace tessera::dtensor
