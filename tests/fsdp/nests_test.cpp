// Random nets, sharded in random ways, go through random steps, some of which fail: they end where
// one rank ends, hold no more than two groups, and nothing after backward.
#include <gtest/gtest.h>

#include <numeric>

#include "tessera/module/clip_grad.h"
#include "tessera/module/state.h"
#include "tests/fsdp/nest_steps.h"

namespace tessera::test {
namespace nests_test {

/// The ranks, and the meshes that groups may lie on: each has all of them.
struct Ranks {
  explicit Ranks(Rng& rng) : size(rng.int_between(1, 8)) {
    std::vector<int> outer;
    for (int i = 2; i < size; ++i) {
      if (size % i == 0) outer.push_back(i);
    }
    if (!outer.empty() && rng.chance(60)) replicas = rng.one_of(outer);
  }
  std::string text() const {
    return "dp=" + std::to_string(replicas) + ",fs=" + std::to_string(size / replicas);
  }
  int size;
  int replicas = 1;
};

/// How a net is sharded: alike on all ranks.
class Sharder {
 public:
  Sharder(uint64_t seed, const Ranks& ranks)
      : rng_(seed), ranks_(ranks), bounded_(rng_.chance(50)) {
    const DeviceMesh mesh = init_device_mesh(ranks.text());
    all_ = mesh.flatten({"dp", "fs"}, "all");
    meshes_ = {ShardMesh(all_)};
    if (ranks.replicas > 1) meshes_.push_back(HybridMesh(mesh));
    if (rng_.chance(30)) meshes_.push_back(ReplicateMesh(all_));
    merge_bytes_ = rng_.one_of<std::optional<int64_t>>({std::nullopt, 0, 0, 3000, 100000});
  }

  void shard(const Net& net) {
    for (const auto& group : net.groups) {
      FullyShardOptions options = {.shard_dim =
                                       [this](const std::string&, const at::Tensor& parameter) {
                                         std::optional<int> dim;
                                         const int64_t dims = parameter.dim();
                                         if (dims > 0 && rng_.chance(50))
                                           dim = rng_.int_between(-static_cast<int>(dims),
                                                                  static_cast<int>(dims) - 1);
                                         return dim;
                                       },
                                   .ignored_params = net.ignored_params,
                                   .merge_bytes = merge_bytes_};
      const DataParallelMesh mesh = rng_.one_of(meshes_);
      options.reshard_after_forward = reshard(mesh);
      if (rng_.chance(20)) options.offload_policy = CPUOffloadPolicy();
      if (rng_.chance(20)) options.data.source = 0;
      fully_shard(*group, mesh, options);
    }
  }

  /// Whether no more than two groups may be gathered.
  bool bounded() const { return bounded_; }
  const DeviceMesh& mesh() const { return all_; }

  std::optional<std::variant<bool, int>> reshard(const DataParallelMesh& mesh) {
    if (bounded_) return true;
    const int shard_ranks = std::holds_alternative<HybridMesh>(mesh) ? ranks_.size / ranks_.replicas
                            : std::holds_alternative<ShardMesh>(mesh) ? ranks_.size
                                                                      : 1;
    switch (rng_.between(0, 3)) {
      case 0:
        return std::nullopt;
      case 1:
        return true;
      case 2:
        return false;
      default:
        int ranks = rng_.int_between(1, shard_ranks);
        while (shard_ranks % ranks != 0) --ranks;
        return ranks;
    }
  }

 private:
  Rng rng_;
  Ranks ranks_;
  bool bounded_;
  DeviceMesh all_;
  std::vector<DataParallelMesh> meshes_;
  std::optional<int64_t> merge_bytes_;
};

/// A forward or a backward that throws, on all ranks alike.
std::string fail(const Side& side, Rng& rng, int64_t rows) {
  Pass pass;
  const Batch batch = side.batch(rng.next() % 100000, rows);
  const int at = rng.int_between(0, side.net.layers - 1);
  const int64_t kind = rng.between(0, 3);
  // Gradients that are kept back go with a backward that fails; one that does not would leave them.
  set_requires_gradient_sync(*side.net.root, kind != 0 || rng.chance(50));
  if (kind == 0) pass.hook_throws_at = at;
  if (kind == 1) pass.throws_at = at;
  const torch::AutoGradMode records(kind != 3);
  try {
    const at::Tensor loss = loss_of(side, batch, pass);
    if (kind == 2) pass.throws_at = at;  // if the layer is recomputed
    if (kind != 3) loss.backward();
  } catch (const std::runtime_error& error) {
    return std::string("after ") + error.what() + ", ";
  }
  return "after another forward, ";
}

/// Settings of groups are changed or read between steps.
void control(const Side& side, Sharder& sharder, Rng& rng) {
  torch::nn::Module& root = *side.net.root;
  torch::nn::Module& some = *rng.one_of(side.net.groups);
  switch (rng.between(0, 5)) {
    case 0:
      unshard(some);
      return;
    case 1:
      unshard_async(some);
      if (rng.chance(50)) reshard(root);
      return;
    case 2:
      if (!sharder.bounded()) set_reshard_after_forward(some, rng.chance(50));
      return;
    case 3:
      load_full_state_dict(root, full_state_dict(root));
      return;
    case 4:
      load_sharded_state_dict(root, sharded_state_dict(root));
      return;
    default:
      std::vector<torch::nn::Module*> next = {rng.one_of(side.net.groups).get()};
      if (rng.chance(50)) next.clear();
      if (!sharder.bounded()) set_modules_to_forward_prefetch(some, next);
  }
}

/// The most that so many groups gather; groups that travel together count as one.
int64_t bytes_of(size_t groups, torch::nn::Module& root) {
  std::vector<int64_t> sizes;
  std::set<size_t> seen;
  for (const auto& group : sharded_groups(root)) {
    if (seen.insert(group.merged).second) sizes.push_back(group.merged_bytes);
  }
  std::ranges::sort(sizes, std::greater());
  if (sizes.size() > groups) sizes.resize(groups);
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

/// The first difference of what `of` gives for each parameter; "" if there is none. Collective.
std::string differ(const Side& got, const Side& want,
                   const std::function<at::Tensor(const at::Tensor&)>& of) {
  for (size_t i = 0; i < got.net.parameters.size(); ++i) {
    const at::Tensor mine = of(got.net.parameters[i]);
    const at::Tensor other = of(want.net.parameters[i]);
    const std::string name =
        "parameter " + std::to_string(i) + " of " + std::to_string(got.net.parameters.size());
    if (mine.defined() != other.defined()) {
      return name + (mine.defined() ? ": only of shards" : ": missing");
    }
    if (!mine.defined()) continue;
    const at::Tensor whole = is_dtensor(mine) ? full_tensor(mine) : mine;
    if (other.numel() == 0) continue;
    const double off = (whole - other).abs().max().item<double>();
    if (!(off <= 1e-7 * (1 + other.abs().max().item<double>()))) {
      return name + ": off by " + std::to_string(off);
    }
  }
  return "";
}

/// Whether a backward has reached a group at all.
bool has_gradient(const Side& side) {
  return std::ranges::any_of(
      side.net.parameters, [](const at::Tensor& p) { return is_dtensor(p) && p.grad().defined(); });
}

void flip_one(Side& plain, Side& sharded, Rng& rng) {
  const auto i = static_cast<size_t>(rng.between(0, std::ssize(plain.net.parameters) - 1));
  const bool now = !plain.net.parameters[i].requires_grad();
  plain.net.parameters[i].set_requires_grad(now);
  sharded.net.parameters[i].set_requires_grad(now);
}

void write_by_hand(Side& plain, Side& sharded, Rng& rng) {
  const torch::NoGradGuard no_grad;
  const auto i = static_cast<size_t>(rng.between(0, std::ssize(plain.net.parameters) - 1));
  plain.net.parameters[i].mul_(0.9);
  sharded.net.parameters[i].mul_(0.9);
}

class Training {
 public:
  Training(uint64_t seed, const Ranks& ranks, int rank)
      : rng_(seed), sharder_(seed + 1, ranks), rows_(2 * ranks.size) {
    const MakeOptimizer make = rng_.chance(50) ? sgd() : adamw();
    plain_.net = NetMaker(seed + 2).make();
    sharded_.net = NetMaker(seed + 2).make();
    plain_.optimizer = make(plain_.net.parameters);
    sharded_.optimizer = make(sharded_.net.parameters);
    sharded_.part = rank;
    sharded_.of = ranks.size;
    sharded_.sharded = true;
    sharder_.shard(sharded_.net);
  }

  /// A step of a new kind, twice.
  void step(int number) {
    const std::string before = rng_.chance(20) ? fail(sharded_, rng_, rows_) : "";
    const bool controlled = rng_.chance(25);
    if (controlled) control(sharded_, sharder_, rng_);
    if (rng_.chance(20)) flip_one(plain_, sharded_, rng_);
    if (rng_.chance(20)) write_by_hand(plain_, sharded_, rng_);
    StepPlan plan(rng_, plain_.net, rows_);
    const std::string name = "step " + std::to_string(number) + ": " + before + plan.to_text();
    run(plan, name, controlled);
    plan.seed += 1000;
    run(plan, name + ", again", controlled);
    if (rng_.chance(30)) evaluate(name);
  }

 private:
  void run(const StepPlan& plan, const std::string& name, bool controlled) {
    plain_.optimizer->zero_grad();
    sharded_.optimizer->zero_grad();
    backwards_of(plain_, plan);
    torch::nn::Module& root = *sharded_.net.root;
    const int64_t before = bytes_of(2, root);
    reset_peak_gathered_memory(sharder_.mesh());
    backwards_of(sharded_, plan);
    const GatheredMemory memory = gathered_memory(sharder_.mesh());
    // The groups that travel together may be others at the end of the step.
    if (sharder_.bounded() && !controlled) {
      EXPECT_LE(memory.peak_bytes, std::max(before, bytes_of(2, root))) << name;
    }
    if (has_gradient(sharded_)) {
      EXPECT_EQ(memory.bytes, 0) << name;
    }
    for (size_t i = 0; i < plain_.net.ignored_params.size(); ++i) {  // the caller's matter
      const at::Tensor gradient = plain_.net.ignored_params[i].grad();
      sharded_.net.ignored_params[i].mutable_grad() =
          gradient.defined() ? gradient.clone() : gradient;
    }
    EXPECT_EQ(differ(sharded_, plain_, [](const at::Tensor& p) { return p.grad(); }), "") << name;
    if (plan.clips) {
      const double want = clip_grad_norm_(plain_.net.parameters, 0.1).item<double>();
      EXPECT_NEAR(clip_grad_norm_(sharded_.net.parameters, 0.1).item<double>(), want,
                  1e-8 * (1 + want));
    }
    plain_.optimizer->step();
    sharded_.optimizer->step();
    EXPECT_EQ(differ(sharded_, plain_, [](const at::Tensor& p) { return p.detach(); }), "") << name;
  }

  void evaluate(const std::string& name) {
    const torch::NoGradGuard no_grad;
    Pass pass;
    const Batch batch = plain_.batch(7, 4);
    EXPECT_TRUE(at::allclose(sharded_.net.forward(batch.x, pass), plain_.net.forward(batch.x, pass),
                             1e-8, 1e-9))
        << name;
  }

  Rng rng_;
  Sharder sharder_;
  Side plain_, sharded_;
  int64_t rows_;
};

TEST(FullyShardNests, GoThroughAnyStepsAsOneRank) {
  for_each_seed(30, [](Rng& rng) {
    const Ranks ranks(rng);
    const uint64_t seed = rng.next() % 1000000;
    run_ranks(ranks.size, [&](int rank) {
      SCOPED_TRACE(ranks.text() + ", rank " + std::to_string(rank));
      Training training(seed, ranks, rank);
      for (int step = 0; step < 6 && !::testing::Test::HasFailure(); ++step) training.step(step);
    });
  });
}

}  // namespace nests_test
}  // namespace tessera::test
