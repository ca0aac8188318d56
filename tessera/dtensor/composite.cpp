#include "tessera/dtensor/composite.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "tessera/dtensor/dispatch.h"

namespace tessera::dtensor {
namespace {

/// By name, all overloads. Views and plain combinations of ops are not here: they make nothing, and
/// going straight through is faster.
constexpr auto kMakeTensors = std::to_array<std::string_view>({
    "_batch_norm_impl_index",
    "_convolution_double_backward",
    "_pad_circular",
    "_scaled_dot_product_attention_math",
    "_weight_norm",
    "_weight_norm_differentiable_backward",
    "affine_grid_generator_backward",
    "argwhere",
    "bilinear",
    "cartesian_prod",
    "cdist",
    "combinations",
    "corrcoef",
    "cosine_embedding_loss",
    "cov",
    "ctc_loss",
    "cummaxmin_backward",
    "cumprod_backward",
    "cumulative_trapezoid",
    "diag",
    "diagflat",
    "diff",
    "embedding_backward",
    "embedding_bag",
    "fft_fftshift",
    "fft_ifftshift",
    "fill_diagonal_",
    "float_power",
    "gather_backward",
    "gradient",
    "grid_sampler",
    "gru",
    "hinge_embedding_loss",
    "histogramdd",
    "index_select_backward",
    "instance_norm",
    "isclose",
    "istft",
    "kron",
    "linalg_cond",
    "linalg_eigh",
    "linalg_ldl_factor",
    "linalg_lu_factor",
    "linalg_matrix_norm",
    "linalg_matrix_power",
    "linalg_matrix_rank",
    "linalg_multi_dot",
    "linalg_norm",
    "linalg_pinv",
    "linalg_solve",
    "linalg_svd",
    "linalg_tensorinv",
    "linalg_tensorsolve",
    "linalg_vander",
    "lstm",
    "lu_solve",
    "margin_ranking_loss",
    "masked_select_backward",
    "matrix_exp",
    "matrix_exp_backward",
    "matrix_power",
    "nanquantile",
    "norm_except_dim",
    "nuclear_norm",
    "one_hot",
    "pad_sequence",
    "pairwise_distance",
    "pdist",
    "pinverse",
    "poisson_nll_loss",
    "quantile",
    "repeat_interleave",
    "rnn_relu",
    "rnn_tanh",
    "special_multigammaln",
    "stft",
    "svd",
    "take_along_dim",
    "trace_backward",
    "trapezoid",
    "trapz",
    "triplet_margin_loss",
    "value_selecting_reduction_backward",
    "vander",
});

thread_local int inside_composites = 0;

class Inside {
 public:
  Inside() { ++inside_composites; }
  ~Inside() { --inside_composites; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

class CompositeKernel final : public c10::OperatorKernel {
 public:
  explicit CompositeKernel(std::shared_ptr<const OpEntry> entry) : entry_(std::move(entry)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    check_plain(*entry_, *stack);
    const Inside inside;
    // Nobody has kernels under this key, so for a composite op it leads to the composite one.
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::AutogradPrivateUse2), stack);
  }

 private:
  std::shared_ptr<const OpEntry> entry_;
};

}  // namespace

bool makes_tensors(const c10::OperatorName& name) {
  constexpr std::string_view kNamespace = "aten::";
  const std::string_view full = name.name;
  return full.starts_with(kNamespace) &&
         std::ranges::binary_search(kMakeTensors, full.substr(kNamespace.size()));
}

c10::KernelFunction composite_kernel(std::shared_ptr<const OpEntry> entry) {
  return c10::KernelFunction::makeFromBoxedFunctor(
      std::make_unique<CompositeKernel>(std::move(entry)));
}

bool plain_is_internal() {
  constexpr int kNoBackward = -1;
  return inside_composites > 0 || torch::autograd::get_current_graph_task_id() != kNoBackward;
}

}  // namespace tessera::dtensor
