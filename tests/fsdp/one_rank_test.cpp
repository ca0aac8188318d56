// A group on one rank: nothing is reduced, so the gradients that autograd made become the
// parameters', as they do without fully_shard.
#include <ATen/record_function.h>

#include "tests/fsdp/training.h"

namespace tessera::test {
namespace one_rank_test {

/// Counts the calls of copying ops on this thread.
class CountCopies {
 public:
  CountCopies()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&seen).scopes(
            {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}))) {
    copies_ = 0;
  }
  ~CountCopies() { at::removeCallback(handle_); }
  CountCopies(const CountCopies&) = delete;
  CountCopies& operator=(const CountCopies&) = delete;
  int count() const { return copies_; }

 private:
  static std::unique_ptr<at::ObserverContext> seen(const at::RecordFunction& call) {
    const std::string_view name = call.name();
    if (name == "aten::copy_" || name == "aten::clone") ++copies_;
    return nullptr;
  }
  static thread_local int copies_;
  at::CallbackHandle handle_;
};
thread_local int CountCopies::copies_ = 0;

TEST(FullyShardOneRank, GradientsOfLayersAreNotCopied) {
  run_ranks(1, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=1");
    const Batch batch = make_batch(6, 6, 4);
    auto plain = make_mlp({6, 10, 4});
    auto net = make_mlp({6, 10, 4});
    fully_shard(*net, mesh);
    const auto copies_of_step = [&](auto& model) {
      model->zero_grad();
      const at::Tensor loss = at::mse_loss(model->forward(batch.x), batch.y);
      const CountCopies copies;
      loss.backward();
      return copies.count();
    };
    copies_of_step(net);  // learns the order of the groups
    EXPECT_EQ(copies_of_step(net), copies_of_step(plain));
    EXPECT_EQ(gradients_differ(*net, *plain), "");
  });
}

struct SumOfViewsImpl : torch::nn::Module {
  SumOfViewsImpl() {
    a = register_parameter("a", at::arange(6, at::kDouble).view({2, 3}) + 1);
    b = register_parameter("b", at::arange(6, at::kDouble).view({3, 2}) - 2);
  }
  at::Tensor forward() { return (a.view(-1) + b.view(-1)).pow(2).sum(); }
  at::Tensor a, b;
};
TORCH_MODULE(SumOfViews);

/// Autograd gives both the same memory; a write to one gradient must leave the other as it is.
TEST(FullyShardOneRank, ParametersDoNotShareAGradient) {
  run_ranks(1, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=1");
    for (const double factor : {1.0, 4.0}) {
      SumOfViews net;
      const at::Tensor want = 2 * (net->a.detach().view(-1) + net->b.detach().view(-1)) / factor;
      fully_shard(*net, mesh);
      set_gradient_divide_factor(*net, factor);
      net->forward().backward();
      to_local(net->a.grad()).zero_();
      EXPECT_TRUE(at::equal(full_tensor(net->b.grad()).view(-1), want));
    }
  });
}

struct ShiftImpl : torch::nn::Module {
  ShiftImpl() { by = register_parameter("by", at::ones({2, 3}, at::kDouble)); }
  at::Tensor forward(const at::Tensor& x) { return by.view(-1) + x; }
  at::Tensor by;
};
TORCH_MODULE(Shift);

/// The memory that becomes the parameter's gradient is still read by nodes that run later.
TEST(FullyShardOneRank, DivisionDoesNotReachNodesThatRunLater) {
  run_ranks(1, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=1");
    Shift net;
    fully_shard(*net, mesh);
    set_gradient_divide_factor(*net, 4);
    const at::Tensor x = at::arange(6, at::kDouble).set_requires_grad(true);
    const at::Tensor deep = (x + 1).exp().log();
    net->forward(deep).pow(2).sum().backward();
    const at::Tensor want = 2 * (x.detach() + 2);
    EXPECT_TRUE(at::allclose(x.grad(), want));
    EXPECT_TRUE(at::allclose(full_tensor(net->by.grad()).view(-1), want / 4));
  });
}

}  // namespace one_rank_test
}  // namespace tessera::test
