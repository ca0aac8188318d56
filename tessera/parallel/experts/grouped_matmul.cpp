#include "tessera/parallel/experts/grouped_matmul.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/tensor/lazy.h"
#include "tessera/mesh/axes_text.h"
#include "tessera/parallel/experts/token_exchange.h"

namespace tessera::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr int kInDim = 1;
constexpr int kOutDim = 2;
constexpr int64_t kAlignment = 16;  // bytes, of the rows that _grouped_mm takes

/// The local matrices of a weight. A parameter of fully_shard is gathered while this exists.
class LocalWeight {
 public:
  explicit LocalWeight(const at::Tensor& weight) {
    at::Tensor value = weight;
    if (dtensor::lazy_local(weight) != nullptr) {
      lazy_ = dtensor::sharded_meta(weight)->lazy();
      value = lazy_->unsharded();
    }
    if (const dtensor::ShardedMeta* meta = dtensor::sharded_meta(value)) {
      sharding_ = meta->sharding();
      value = meta->local();
    }
    local_ = value.detach();
  }
  ~LocalWeight() {
    local_.reset();
    if (lazy_ != nullptr) lazy_->release();
  }
  LocalWeight(const LocalWeight&) = delete;
  LocalWeight& operator=(const LocalWeight&) = delete;

  const at::Tensor& local() const { return local_; }
  const Sharding& sharding() const { return sharding_; }  ///< undefined: plain

  /// The ranks over which a dim is sharded.
  RankGroup group_of_dim(int dim) const {
    if (!sharding_.defined() || sharding_.axes_of_dim(dim).empty()) return {};
    const auto axes = sharding_.axes_of_dim(dim);
    return {comm::group_of(sharding_.mesh(), axes), axes_text(sharding_.mesh(), axes)};
  }

  /// A gradient of the local matrices, placed like the weight.
  at::Tensor placed(const at::Tensor& gradient, const std::vector<std::string>& row_axes) const {
    if (!sharding_.defined()) return gradient;
    Sharding as = sharding_.with_shape({sharding_.shape().begin(), sharding_.shape().end()})
                      .with_dtype(static_cast<DType>(gradient.scalar_type()));
    for (int axis = 0; axis < as.mesh().ndim(); ++axis) {
      const bool differs = std::ranges::find(row_axes, as.mesh().axis_name(axis)) != row_axes.end();
      if (differs && as.placement(axis).is_replicate()) as = as.with(axis, Partial());
    }
    return dtensor::wrap(gradient, as);
  }

 private:
  std::shared_ptr<dtensor::LazyLocal> lazy_;
  at::Tensor local_;
  Sharding sharding_;
};

bool has_aligned_rows(const at::Tensor& t) {
  return t.is_contiguous() && t.size(-1) * t.element_size() % kAlignment == 0;
}

bool has_kernel_for(const at::Tensor& a, const at::Tensor& b) {
  const auto dtype = a.scalar_type();
  return (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16) && a.numel() > 0 &&
         has_aligned_rows(a) && has_aligned_rows(b);
}

at::Tensor group_ends(const std::vector<int64_t>& counts, c10::Device device) {
  std::vector<int32_t> ends;
  int64_t end = 0;
  for (const int64_t count : counts) ends.push_back(static_cast<int32_t>(end += count));
  return at::tensor(ends, at::kInt).to(device);
}

/// Calls of(expert, first row, count) for experts with rows.
template <class Call>
void for_groups(const std::vector<int64_t>& counts, Call call) {
  int64_t first = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] > 0) call(static_cast<int64_t>(e), first, counts[e]);
    first += counts[e];
  }
}

/// rows @ weight[e], or with `transposed` rows @ weight[e].t().
at::Tensor multiply(const at::Tensor& rows, const at::Tensor& weight,
                    const std::vector<int64_t>& counts, bool transposed) {
  const at::Tensor matrices = transposed ? weight.transpose(1, 2) : weight;
  if (has_kernel_for(rows, weight) && matrices.size(2) * rows.element_size() % kAlignment == 0) {
    return at::_grouped_mm(rows, matrices, group_ends(counts, rows.device()));
  }
  at::Tensor out = at::empty({rows.size(0), matrices.size(2)}, rows.options());
  for_groups(counts, [&](int64_t e, int64_t first, int64_t count) {
    at::Tensor part = out.narrow(0, first, count);
    at::mm_out(part, rows.narrow(0, first, count), matrices[e]);
  });
  return out;
}

/// By expert, rows.t() @ grad.
at::Tensor weight_gradient(const at::Tensor& rows, const at::Tensor& grad,
                           const std::vector<int64_t>& counts) {
  if (has_kernel_for(rows, grad) && grad.numel() > 0) {
    return at::_grouped_mm(rows.t(), grad, group_ends(counts, rows.device()));
  }
  at::Tensor out =
      at::zeros({static_cast<int64_t>(counts.size()), rows.size(1), grad.size(1)}, rows.options());
  for_groups(counts, [&](int64_t e, int64_t first, int64_t count) {
    at::Tensor part = out[e];
    at::mm_out(part, rows.narrow(0, first, count).t(), grad.narrow(0, first, count));
  });
  return out;
}

void check_operands(const at::Tensor& rows, const LocalWeight& weight,
                    const std::vector<int64_t>& counts) {
  const at::Tensor& w = weight.local();
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  require(rows.dim() == 2 && w.dim() == 3 && rows.size(0) == total && rows.size(1) == w.size(1) &&
              w.size(0) == static_cast<int64_t>(counts.size()),
          "grouped_matmul: rows are ", shape_text({rows.sizes().begin(), rows.sizes().end()}),
          ", local weights ", shape_text({w.sizes().begin(), w.sizes().end()}), ", ", counts.size(),
          " counts of ", total, " rows; give rows x in, experts x in x out");
}

struct GroupedMatmul : torch::autograd::Function<GroupedMatmul> {
  static Variable forward(AutogradContext* ctx, const Variable& rows, const Variable& weight,
                          const std::vector<int64_t>& counts,
                          const std::vector<std::string>& row_axes) {
    ctx->save_for_backward({rows, weight});
    ctx->saved_data["counts"] = counts;
    ctx->saved_data["row_axes"] = row_axes;
    const LocalWeight local(weight);
    check_operands(rows, local, counts);
    const at::Tensor out = multiply(rows.contiguous(), local.local(), counts, false);
    const RankGroup sums = local.group_of_dim(kInDim);
    return sums.group == nullptr ? out : all_reduce_sum(out, sums);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (c10::GradMode::is_enabled()) {
      throw NotSupported(
          "grouped_matmul has no second derivative; call backward without "
          "create_graph");
    }
    const auto saved = ctx->get_saved_variables();
    const auto counts = ctx->saved_data["counts"].toIntVector();
    std::vector<std::string> row_axes;
    for (const auto& name : ctx->saved_data["row_axes"].toListRef()) {
      row_axes.push_back(name.toStringRef());
    }
    const at::Tensor grad = grads[0].contiguous();
    const LocalWeight local(saved[1]);
    at::Tensor d_rows = multiply(grad, local.local(), counts, /*transposed=*/true);
    const RankGroup sums = local.group_of_dim(kOutDim);
    if (sums.group != nullptr) d_rows = all_reduce_sum(d_rows, sums);
    const at::Tensor d_weight = weight_gradient(saved[0].contiguous(), grad, counts);
    return {d_rows, local.placed(d_weight, row_axes), Variable(), Variable()};
  }
};

}  // namespace

at::Tensor grouped_matmul(const at::Tensor& rows, const at::Tensor& weight,
                          const std::vector<int64_t>& counts, const GroupedMatmulOptions& options) {
  require(!is_dtensor(rows), "grouped_matmul: rows must be plain, they are ",
          [&] { return sharding(rows).to_text(); });
  return GroupedMatmul::apply(rows, weight, counts, options.row_axes);
}

}  // namespace tessera::parallel
