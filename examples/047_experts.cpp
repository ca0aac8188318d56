// Trains a mixture of experts: a router picks two of eight experts for each token, and each of four
// ranks holds two of the experts. Tokens go to the ranks of their experts and back; how many is
// known only when the step runs. The losses are those of one rank, with and without a capacity.
#include <tessera/tessera.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <iostream>
#include <stdexcept>

using namespace tessera;

constexpr int64_t kTokens = 120;
constexpr int64_t kWidth = 16;
constexpr int64_t kHidden = 32;
constexpr int64_t kExperts = 8;
constexpr int64_t kChoices = 2;

struct Mixture : torch::nn::Module {
  explicit Mixture(std::optional<double> capacity_factor) : capacity(capacity_factor) {
    const auto options = at::TensorOptions(at::kDouble);
    register_module("router", router);
    up = register_parameter("up", torch::randn({kExperts, kWidth, kHidden}, options) / 4);
    down = register_parameter("down", torch::randn({kExperts, kHidden, kWidth}, options) / 6);
    router->to(at::kDouble);
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto [gate, choice] = router(x).softmax(-1).topk(kChoices, -1);
    const ExpertResult result =
        expert_parallel(x, choice, gate,
                        [&](const at::Tensor& rows, const ExpertRows& experts) {
                          return experts.matmul(torch::silu(experts.matmul(rows, up)), down);
                        },
                        {.experts = kExperts, .axis = "ep", .capacity_factor = capacity});
    load = result.load;
    return x + result.out;
  }

  torch::nn::Linear router{torch::nn::LinearOptions(kWidth, kExperts).bias(false)};
  at::Tensor up, down;
  std::optional<double> capacity;
  ExpertLoad load;
};

struct Training {
  std::vector<double> losses;
  ExpertLoad load;
};

Training train(const std::string& mesh_text, std::optional<double> capacity) {
  const DeviceMesh mesh = init_device_mesh(mesh_text);
  tessera::manual_seed(7);
  const at::Tensor inputs = torch::randn({kTokens, kWidth}, at::TensorOptions(at::kDouble));
  auto model = std::make_shared<Mixture>(capacity);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));
  distribute_(model->up, mesh, {Shard(0)});
  distribute_(model->down, mesh, {Shard(0)});
  distribute_module(*model, mesh);  // the router is replicated
  reduce_gradients(*model);

  const at::Tensor x = distribute_tensor(inputs, mesh, {Shard(0)});
  const at::Tensor y = distribute_tensor(inputs.roll(1, 1).sin(), mesh, {Shard(0)});
  Training out;
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = (model->forward(x) - y).pow(2).sum() / inputs.numel();
    loss.backward();
    optimizer.step();
    out.losses.push_back(loss.item<double>());
  }
  out.load = model->load;
  return out;
}

int main() {
  for (const auto capacity : {std::optional<double>(), std::optional<double>(1.0)}) {
    Training alone, together;
    run_ranks(1, [&](int) { alone = train("ep=1", capacity); });
    run_ranks(4, [&](int rank) {
      const Training mine = train("ep=4", capacity);
      if (rank == 0) together = mine;
    });
    for (size_t step = 0; step < alone.losses.size(); ++step) {
      std::cout << "step " << step << ": loss " << alone.losses[step] << " on one rank, "
                << together.losses[step] << " on four\n";
      if (std::abs(alone.losses[step] - together.losses[step]) > 1e-9) {
        throw std::runtime_error("they differ");
      }
    }
    std::cout << together.load.to_text() << "\n";
    if (together.load.kept != alone.load.kept) throw std::runtime_error("loads differ");
  }
}
