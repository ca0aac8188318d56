#include "tessera/parallel/experts/expert_parallel.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/autograd.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/mesh/axes_text.h"
#include "tessera/parallel/experts/expert_route.h"
#include "tessera/parallel/experts/grouped_matmul.h"

namespace tessera {
namespace {

parallel::RankGroup group_over(const DeviceMesh& mesh, const std::vector<std::string>& names) {
  std::vector<int> axes;
  int ranks = 1;
  for (const std::string& name : names) {
    axes.push_back(mesh.axis(name));
    ranks *= mesh.size(axes.back());
  }
  if (ranks == 1) return {};
  return {comm::group_of(mesh, axes), axes_text(mesh, axes)};
}

/// The axes that shard dim 0, outermost first; throws if the tensor is placed otherwise.
std::vector<std::string> token_axes_of(const Sharding& tokens, const std::string& expert_axis) {
  for (const Placement& p : tokens.placements()) {
    require(p.is_replicate() || p.is_sharded(0), "expert_parallel: tokens are ", tokens,
            "; shard them over dim 0 alone");
  }
  std::vector<std::string> names;
  for (const int axis : tokens.axes_of_dim(0)) names.push_back(tokens.mesh().axis_name(axis));
  require(tokens.mesh().has_axis(expert_axis), "expert_parallel: no axis '", expert_axis,
          "' in mesh ", tokens.mesh());
  const int axis = tokens.mesh().axis(expert_axis);
  require(tokens.placement(axis).is_sharded(0) || tokens.mesh().size(axis) == 1,
          "expert_parallel: tokens are ", tokens, "; shard them over ", expert_axis,
          ", or its ranks would all send the same tokens");
  if (std::ranges::find(names, expert_axis) == names.end()) names.push_back(expert_axis);
  return names;
}

void check_beside(const at::Tensor& tensor, const Sharding& tokens, const char* what) {
  require(is_dtensor(tensor), "expert_parallel: ", what, " must be sharded like the tokens");
  const Sharding& has = sharding(tensor);
  require(has.mesh() == tokens.mesh() && has.placements_text() == tokens.placements_text() &&
              has.ndim() == 2 && has.shape()[0] == tokens.shape()[0],
          "expert_parallel: ", what, " is ", has, ", tokens are ", tokens,
          "; redistribute it to the same placements");
}

}  // namespace

int64_t ExpertLoad::dropped() const {
  return std::accumulate(routed.begin(), routed.end(), int64_t{0}) -
         std::accumulate(kept.begin(), kept.end(), int64_t{0});
}

double ExpertLoad::imbalance() const {
  const auto total = static_cast<double>(std::accumulate(kept.begin(), kept.end(), int64_t{0}));
  if (total == 0) return 0;
  return static_cast<double>(std::ranges::max(kept)) * static_cast<double>(kept.size()) / total;
}

std::string ExpertLoad::to_text() const {
  std::string text = join_text("rows of experts ", list_text(kept), ", imbalance ", imbalance());
  if (capacity > 0) text += join_text(", capacity ", capacity, ", dropped ", dropped());
  return text;
}

at::Tensor ExpertRows::matmul(const at::Tensor& rows, const at::Tensor& weight) const {
  return parallel::grouped_matmul(rows, weight, counts, {.row_axes = token_axes});
}

ExpertResult expert_parallel_local(const at::Tensor& tokens, const at::Tensor& choice,
                                   const at::Tensor& gate, const ExpertFunction& function,
                                   const DeviceMesh& mesh, const ExpertOptions& options,
                                   std::vector<std::string> token_axes) {
  if (token_axes.empty()) token_axes = {options.axis};
  require(std::ranges::find(token_axes, options.axis) != token_axes.end(),
          "expert_parallel: the expert axis ", options.axis, " is not among the token axes");
  parallel::ExpertRoute route(choice, group_over(mesh, token_axes),
                              group_over(mesh, {options.axis}), options);
  route.rows().token_axes = std::move(token_axes);
  const at::Tensor computed = function(route.send(tokens), route.rows());
  return {route.return_sum(computed, gate), route.load()};
}

ExpertResult expert_parallel(const at::Tensor& tokens, const at::Tensor& choice,
                             const at::Tensor& gate, const ExpertFunction& function,
                             const ExpertOptions& options) {
  require(is_dtensor(tokens),
          "expert_parallel: tokens must be sharded; for local tensors there "
          "is expert_parallel_local");
  const Sharding& as = sharding(tokens);
  require(as.ndim() == 2, "expert_parallel: tokens are ", as, "; give tokens x width");
  const auto axes = token_axes_of(as, options.axis);
  check_beside(choice, as, "choice");
  check_beside(gate, as, "gate");
  require(as.mesh().contains_me(), "expert_parallel: this rank is not in mesh ", as.mesh());
  const auto local = [](const at::Tensor& t) {
    return dtensor::unwrap_differentiable(t, dtensor::gradient_sharding(sharding(t)));
  };
  ExpertResult result = expert_parallel_local(local(tokens), local(choice), local(gate), function,
                                              as.mesh(), options, axes);
  const Sharding out = as.with_shape({as.shape()[0], result.out.size(1)});
  result.out = dtensor::wrap_differentiable(result.out.contiguous(), out);
  return result;
}

}  // namespace tessera
