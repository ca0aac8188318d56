#include "tessera/dtensor/dispatch/composite.h"

#include <ATen/ops/any.h>
#include <ATen/ops/max_pool1d_with_indices.h>
#include <ATen/ops/ne.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <span>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/gather_backward.h"
#include "tessera/dtensor/dispatch/lazy/lazy_dtypes.h"
#include "tessera/dtensor/dispatch/placed_gradient.h"
#include "tessera/dtensor/tensor/layout.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"

namespace tessera::dtensor {
namespace {

/// By name, all overloads. Views and simple compositions of ops are not listed: they create no
/// tensors, and passing through is faster.
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
    "gru_cell",
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
    "lstm_cell",
    "lu_solve",
    "margin_ranking_loss",
    "masked_select_backward",
    "matrix_exp",
    "matrix_exp_backward",
    "matrix_power",
    "max_pool1d",
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
    "resolve_conj",
    "resolve_neg",
    "rnn_relu",
    "rnn_relu_cell",
    "rnn_tanh",
    "rnn_tanh_cell",
    "scaled_dot_product_attention",
    "special_multigammaln",
    "stft",
    "svd",
    "take_along_dim",
    "tensor_split",
    "trace_backward",
    "trapezoid",
    "trapz",
    "triplet_margin_loss",
    "value_selecting_reduction_backward",
    "vander",
});

thread_local int inside_composites = 0;

std::atomic<IsLiteral> literal_test{nullptr};

constexpr int kNoBackward = -1;

/// By mangled type name: libtorch's derivatives are classes in torch::autograd. So are the nodes
/// that wrap a function of the program, in C++ or in Python, which do not count.
bool is_libtorchs_own(const torch::autograd::Node& node) {
  constexpr std::string_view kOwn = "N5torch8autograd";
  constexpr std::array<std::string_view, 2> kOfTheProgram = {"7CppNode", "6PyNode"};
  std::string_view type = typeid(node).name();
  if (!type.starts_with(kOwn)) return false;
  type.remove_prefix(kOwn.size());
  return std::ranges::none_of(kOfTheProgram, [&](auto name) { return type.starts_with(name); });
}

bool has_hooks_of_the_program(torch::autograd::Node& node) {
  const auto not_ours = [](const auto& hook) { return !is_placing_hook(*hook); };
  return std::ranges::any_of(node.tensor_pre_hooks(), not_ours) || !node.pre_hooks().empty() ||
         !node.post_hooks().empty() || node.tensor_post_acc_grad_hooks() != nullptr;
}

/// Whether a derivative formula of libtorch created the tensor. False for tensors of derivatives
/// that the program wrote, and of a recomputed forward: that one records a graph, which backward
/// does only if its graph is kept. A node's hooks run under the same node as its formula; there the
/// host language knows which tensors the program holds. If it cannot tell (C++), all plain tensors
/// count as the program's.
bool is_of_derivative_formula(const at::Tensor& plain) {
  if (torch::autograd::get_current_graph_task_id() == kNoBackward) return false;
  if (c10::GradMode::is_enabled() && !torch::autograd::get_current_graph_task_keep_graph()) {
    return false;
  }
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr || !is_libtorchs_own(*node)) return false;
  if (!has_hooks_of_the_program(*node)) return true;
  const IsLiteral test = literal_test.load();
  return test != nullptr && test(plain);
}

/// Arguments that a composite op reads element by element: every rank needs all of them.
constexpr auto kRead = std::to_array<std::pair<std::string_view, size_t>>({
    {"aten::ctc_loss.Tensor", 2},
    {"aten::ctc_loss.Tensor", 3},
    {"aten::tensor_split.tensor_indices_or_sections", 1},
});

void read_whole(const OpEntry& entry, torch::jit::Stack& stack, size_t arg) {
  c10::IValue& value = stack[stack.size() - entry.args.size() + arg];
  const ShardedMeta* meta = sharded_meta(value.toTensor());
  if (meta == nullptr) return;
  const comm::CallSite site({.op = entry.name, .implicit = true});
  value = exec::redistribute(meta->local(), meta->sharding(), meta->sharding().replicated());
}

/// Whether every element is zero; true for tensors without values.
bool is_zero(const at::Tensor& tensor) { return tensor.is_meta() || !at::any(tensor).item<bool>(); }

at::Tensor placed_if_zero(const at::Tensor& state, const DeviceMesh& mesh) {
  if (!state.defined() || sharded_meta(state) != nullptr || !is_zero(state)) return state;
  return wrap(state.detach(), as_replicated(state, mesh));
}

/// lstm, gru and rnn modules, and their cells, start from zeros that they create, as plain tensors,
/// equal on every rank. lstm(input, hx[], ...), gru(input, hx, ...), lstm_cell(input, hx[], ...),
/// gru_cell(input, hx, ...), with packed inputs gru(data, batch_sizes, hx, ...).
void place_zero_state(const OpEntry& entry, torch::jit::Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  const ShardedMeta* input = sharded_meta(stack[base].toTensor());
  if (input == nullptr) return;
  const DeviceMesh& mesh = input->sharding().mesh();
  c10::IValue& state = stack[base + (entry.name.ends_with(".data") ? 2 : 1)];
  if (state.isTensor()) {
    state = placed_if_zero(state.toTensor(), mesh);
    return;
  }
  c10::List<at::Tensor> placed;
  for (const at::Tensor& tensor : state.toTensorVector()) {
    placed.push_back(placed_if_zero(tensor, mesh));
  }
  state = std::move(placed);
}

bool is_recurrent(std::string_view name) {
  constexpr auto kCells = std::to_array<std::string_view>(
      {"aten::gru_cell", "aten::lstm_cell", "aten::rnn_relu_cell", "aten::rnn_tanh_cell"});
  return name.starts_with("aten::lstm.") || name.starts_with("aten::gru.") ||
         name.starts_with("aten::rnn_tanh.") || name.starts_with("aten::rnn_relu.") ||
         std::ranges::find(kCells, name) != kCells.end();
}

/// max_pool1d(self, kernel_size, stride, padding, dilation, ceil_mode): libtorch's reads the memory
/// of an input that requires no gradient. Its other implementation is composed of ops.
void max_pool1d(const OpEntry& entry, torch::jit::Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor pooled = std::get<0>(
      at::max_pool1d_with_indices(args[0].toTensor(), args[1].toIntVector(), args[2].toIntVector(),
                                  args[3].toIntVector(), args[4].toIntVector(), args[5].toBool()));
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, pooled);
}

/// The mesh of a sharded argument without elements; undefined if there is none.
DeviceMesh mesh_of_empty(std::span<const c10::IValue> arguments) {
  for (const c10::IValue& argument : arguments) {
    const ShardedMeta* meta = argument.isTensor() ? sharded_meta(argument.toTensor()) : nullptr;
    if (meta != nullptr && meta->sharding().numel() == 0) return meta->sharding().mesh();
  }
  return {};
}

/// Of a tensor without elements (one_hot), a composite op may return one that it made from sizes
/// alone, equal on every rank.
void place_results(const DeviceMesh& mesh, std::span<c10::IValue> results) {
  for (c10::IValue& result : results) {
    if (!result.isTensor() || !result.toTensor().defined()) continue;
    const at::Tensor tensor = result.toTensor();
    if (sharded_meta(tensor) != nullptr || tensor.requires_grad()) continue;
    result = wrap(tensor, as_replicated(tensor, mesh));
  }
}

class CompositeKernel final : public c10::OperatorKernel {
 public:
  explicit CompositeKernel(std::shared_ptr<const OpEntry> entry)
      : entry_(std::move(entry)), is_recurrent_(is_recurrent(entry_->name)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (is_recurrent_) place_zero_state(*entry_, *stack);
    check_plain(*entry_, *stack);
    for (const auto& [op_name, arg] : kRead) {
      if (entry_->name == op_name) read_whole(*entry_, *stack, arg);
    }
    ReportComputeDtypes as_computed;
    if (LazyLocal::any()) {
      as_computed.add_arguments(*entry_, *stack);
      match_running_statistics(*entry_, *stack);
    }
    const InsideComposite inside;
    if (entry_->name == "aten::gather_backward" && gather_backward(*entry_, *stack)) return;
    if (entry_->decomposition != nullptr && entry_->decomposition(*entry_, op, *stack)) return;
    if (entry_->name == "aten::max_pool1d") return max_pool1d(*entry_, *stack);
    const size_t base = stack->size() - entry_->args.size();
    const DeviceMesh of_empty = mesh_of_empty(std::span(*stack).subspan(base));
    // No backend registers kernels for this key, so a composite op resolves to its composite
    // kernel.
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::AutogradPrivateUse2), stack);
    if (of_empty.defined() && entry_->written.empty()) {
      place_results(of_empty, std::span(*stack).subspan(base));
    }
  }

 private:
  std::shared_ptr<const OpEntry> entry_;
  bool is_recurrent_;
};

/// Sharded like `other` along dims of the same size, so that no redistribution is needed between
/// them.
Sharding placed_beside(const Sharding& plain, const Sharding& other) {
  std::vector<Placement> placements(plain.placements().begin(), plain.placements().end());
  for (int axis = 0; axis < other.mesh().ndim() && plain.ndim() == other.ndim(); ++axis) {
    const Placement& p = other.placement(axis);
    if (!p.is_sharded()) continue;
    const auto dim = static_cast<size_t>(p.dim());
    if (plain.shape()[dim] == other.shape()[dim]) placements[static_cast<size_t>(axis)] = p;
  }
  return plain.with_placements(std::move(placements), other.order());
}

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

InsideComposite::InsideComposite() { ++inside_composites; }
InsideComposite::~InsideComposite() { --inside_composites; }

void set_literal_test(IsLiteral test) { literal_test.store(test); }

bool is_literal_index(const OpEntry& entry, const at::Tensor& plain) {
  const IsLiteral test = literal_test.load();
  return test != nullptr &&
         (entry.name == "aten::index.Tensor" || entry.name.starts_with("aten::index_put") ||
          entry.name == "aten::_index_put_impl_") &&
         c10::isIntegralType(plain.scalar_type(), /*includeBool=*/true) && test(plain);
}

bool in_backward_or_composite() {
  return inside_composites > 0 || torch::autograd::get_current_graph_task_id() != kNoBackward;
}

bool is_materialized_zero(const at::Tensor& plain) {
  if (torch::autograd::get_current_graph_task_id() == kNoBackward) return false;
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr || is_libtorchs_own(*node)) return false;
  return !plain.is_meta() && !at::any(plain.ne(0)).item<bool>();
}

bool plain_is_internal(const at::Tensor& plain) {
  return inside_composites > 0 || is_of_derivative_formula(plain);
}

void adopt_internal(const OpEntry& entry, Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  for (const int i : entry.written) {
    const c10::IValue& value = stack[base + static_cast<size_t>(i)];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& tensor = value.toTensor();
    if (sharded_meta(tensor) != nullptr || !plain_is_internal(tensor)) continue;
    for (const auto& other : operands_of(entry, stack)) {
      if (other.sharded == nullptr) continue;
      const Sharding& theirs = other.sharded->sharding();
      const Sharding plain = as_replicated(tensor, theirs.mesh());
      if (tensor.storage().use_count() > 1) {  // a view: what is written must reach its base
        const int64_t offset = tensor.storage_offset();
        become(tensor, tensor.alias(), plain);
        // Autograd differentiates the write to the base by the view's strides and offset.
        tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
        break;
      }
      const Sharding as = placed_beside(plain, theirs);
      // An alias, because otherwise the tensor would reference itself.
      become(tensor, exec::redistribute(tensor.alias(), plain, as).contiguous(), as);
      break;
    }
  }
}

}  // namespace tessera::dtensor
