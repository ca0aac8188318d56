// Reduces gradients to their parameters' placements, many in one message.
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include <map>
#include <mutex>

#include "tessera/dtensor/buckets.h"
#include "tessera/dtensor/tensor/lazy.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"
#include "tessera/module/distribute_module.h"
#include "tessera/observe/call_site.h"

namespace tessera {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

constexpr std::string_view kSite = "reduce_gradients";

bool is_placed_as(const at::Tensor& grad, const Sharding& as) {
  const Sharding& has = sharding(grad);
  return has.mesh() == as.mesh() && has.placements_text() == as.placements_text();
}

/// The gradients of a backward that are reduced at its end.
class WaitingGradients : public std::enable_shared_from_this<WaitingGradients> {
 public:
  /// `index` determines the order, which must be the same on all ranks.
  void add(size_t index, const WeakTensor& parameter) {
    const int task = torch::autograd::get_current_graph_task_id();
    const std::lock_guard lock(mutex_);
    if (task != task_) {
      waiting_.clear();  // from a backward that threw
      task_ = task;
      torch::autograd::Engine::get_default_engine().queue_callback(
          [self = shared_from_this()] { self->reduce(); });
    }
    waiting_.insert_or_assign(index, parameter);
  }

 private:
  void reduce() {
    const c10::AutoGradMode no_grad(false);
    std::map<size_t, WeakTensor> waiting;
    {
      const std::lock_guard lock(mutex_);
      waiting.swap(waiting_);
      task_ = kNone;
    }
    std::vector<at::Tensor> parameters, gradients;
    std::vector<Sharding> targets;
    for (const auto& [index, weak] : waiting) {
      const at::Tensor parameter(weak.lock());
      if (!parameter.defined()) continue;
      const at::Tensor& grad = parameter.grad();
      if (!grad.defined() || !is_dtensor(grad)) continue;  // consumed by a hook
      const Sharding& as = sharding(parameter);
      if (is_placed_as(grad, as)) continue;
      parameters.push_back(parameter);
      gradients.push_back(grad);
      targets.push_back(as.with_dtype(sharding(grad).dtype()));
    }
    const comm::CallSite site({.op = kSite});
    const auto reduced = dtensor::reduce_all(gradients, targets);
    for (size_t i = 0; i < reduced.size(); ++i) parameters[i].mutable_grad() = reduced[i];
  }

  static constexpr int kNone = -1;
  std::mutex mutex_;  // autograd has a thread per device
  int task_ = kNone;
  std::map<size_t, WeakTensor> waiting_;
};

/// Whether the gradient must be reduced immediately: it is requested itself, differentiated again,
/// or added to one that is already reduced.
bool is_due(const at::Tensor& parameter) {
  const auto* asked = torch::autograd::get_current_graph_task_exec_info();
  return c10::GradMode::is_enabled() || (asked != nullptr && !asked->empty()) ||
         parameter.grad().defined();
}

}  // namespace

void reduce_gradients(torch::nn::Module& module) { reduce_gradients(module.parameters()); }

void reduce_gradients(std::span<const at::Tensor> parameters) {
  const auto waiting = std::make_shared<WaitingGradients>();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!is_dtensor(parameters[i]) || !parameters[i].requires_grad()) continue;
    // The parameter owns the hook, so the hook must not own the parameter.
    const WeakTensor weak(parameters[i].getIntrusivePtr());
    parameters[i].register_hook([waiting, weak, i](const at::Tensor& grad) {
      const at::Tensor parameter(weak.lock());
      if (!grad.defined() || !is_dtensor(grad) || !parameter.defined()) return grad;
      if (dtensor::lazy_local(parameter) != nullptr) return grad;  // fully_shard reduces it
      const Sharding& as = sharding(parameter);
      if (is_placed_as(grad, as)) return grad;
      if (!is_due(parameter)) {
        waiting->add(i, weak);
        return grad;
      }
      const comm::CallSite site({.op = kSite});
      return redistribute(grad, as.with_dtype(sharding(grad).dtype()));
    });
  }
}

}  // namespace tessera
