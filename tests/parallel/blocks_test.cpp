// An MLP, a GPT block and a Llama block in plain torch::nn, made parallel by a plan alone.
#include "tests/parallel/parallel_cases.h"
#include "tests/support/processes.h"

namespace tessera::test {
namespace blocks_test {

const Placement kBySequence = Shard(1);

RowwiseOptions to_sequence(bool by_sequence) {
  return {.output_layout = by_sequence ? kBySequence : Replicate()};
}

BlockCase mlp() {
  return {"mlp",
          [] {
            blocks::Mlp net(kWidth, kHidden);
            return Instance{net.ptr(), [net](const auto& x) mutable { return net(x[0]); }};
          },
          [](bool by_sequence) {
            return ParallelPlan{{"up", ColwiseParallel()},
                                {"down", RowwiseParallel(to_sequence(by_sequence))}};
          }};
}

BlockCase gpt() {
  return {"gpt",
          [] {
            blocks::GptBlock net(kWidth, kHeads, kHidden);
            return Instance{net.ptr(), [net](const auto& x) mutable { return net(x[0]); }};
          },
          [](bool by_sequence) {
            ParallelPlan plan = {
                {"attention.qkv", ColwiseParallel({.parts = 3, .heads = kHeads})},
                {"attention.out", RowwiseParallel(to_sequence(by_sequence))},
                {"mlp.up", ColwiseParallel()},
                {"mlp.down", RowwiseParallel(to_sequence(by_sequence))},
            };
            if (by_sequence) plan.emplace_back("*_norm", SequenceParallel());
            return plan;
          },
          2};
}

/// cos and sin of each place and feature.
std::pair<at::Tensor, at::Tensor> rotation() {
  const at::Tensor angles = test_numbers({kPlaces, kWidth / kHeads}, 77);
  return {at::cos(angles), at::sin(angles)};
}

BlockCase llama(int64_t kv_heads) {
  return {"llama",
          [kv_heads] {
            blocks::LlamaBlock net(
                blocks::LlamaSizes{kWidth, kHeads, kv_heads, kHidden, /*vocabulary=*/50});
            return Instance{net.ptr(), [net](const auto& x) mutable {
                              auto [cos, sin] = rotation();
                              if (is_dtensor(x[0])) {
                                const DistributeOptions own = {.source = std::nullopt};
                                cos = distribute_tensor(cos, device_mesh(x[0]), {Replicate()}, own);
                                sin = distribute_tensor(sin, device_mesh(x[0]), {Replicate()}, own);
                              }
                              return net(x[0], cos, sin);
                            }};
          },
          [kv_heads](bool by_sequence) {
            ParallelPlan plan = {
                {"attention.wq", ColwiseParallel({.heads = kHeads})},
                {"attention.wk", ColwiseParallel({.heads = kv_heads})},
                {"attention.wv", ColwiseParallel({.heads = kv_heads})},
                {"attention.wo", RowwiseParallel(to_sequence(by_sequence))},
                {"mlp.gate", ColwiseParallel()},
                {"mlp.up", ColwiseParallel()},
                {"mlp.down", RowwiseParallel(to_sequence(by_sequence))},
            };
            if (by_sequence) plan.emplace_back("*_norm", SequenceParallel());
            return plan;
          },
          2};
}

at::Tensor placed_input(const at::Tensor& x, const DeviceMesh& mesh, bool by_sequence) {
  return distribute_tensor(x, mesh, {by_sequence ? kBySequence : Replicate()});
}

/// What one forward and backward of a block send, counted exactly.
void check_messages(const BlockCase& subject, const Instance& instance, const at::Tensor& x,
                    const at::Tensor& target, bool by_sequence) {
  const auto expected = [&](const char* without, const char* with) {
    const std::string count = std::to_string(subject.blocks);
    return by_sequence ? count + " all_gather on tp, " + count + " reduce_scatter on tp" + with
                       : count + " all_reduce on tp" + without;
  };
  const at::Tensor input = x.detach().requires_grad_();
  comm::Recorder recorder(*comm::current_world());
  const at::Tensor y = instance.call({input});
  EXPECT_EQ(comm::expect_comm(recorder, expected(", 0 implicit", ", 0 implicit")), "")
      << subject.name << " forward";
  recorder.clear();
  const at::Tensor loss = at::mse_loss(y, target, at::Reduction::Sum);
  recorder.clear();
  loss.backward();
  // The gradients of replicated parameters used on parts of the sequence are added up at the end,
  // in one message.
  EXPECT_EQ(comm::expect_comm(recorder, expected("", ", 1 all_reduce on tp")), "")
      << subject.name << " backward";
  for (const auto& item : instance.module->named_parameters()) item.value().mutable_grad().reset();
}

struct Numbers {
  at::Tensor x = test_numbers({kBatch, kPlaces, kWidth}, 5);
  at::Tensor target = test_numbers({kBatch, kPlaces, kWidth}, 6);
};

RunResults train_alone(const BlockCase& subject) {
  const Numbers numbers;
  const Instance alone = subject.make();
  set_parameters(*alone.module, 9);
  return train(alone, numbers.x, numbers.target);
}

/// The part of one rank. With `counts`, what a step sends is compared with the case's counts too.
void check_on_rank(const BlockCase& subject, int ranks, bool by_sequence, bool counts,
                   const RunResults& expected) {
  const Numbers numbers;
  const DeviceMesh mesh = comm::init_device_mesh("tp=" + std::to_string(ranks));
  const Instance instance = subject.make();
  set_parameters(*instance.module, 9);
  parallelize_module(*instance.module, mesh, subject.plan(by_sequence));
  const at::Tensor x = placed_input(numbers.x, mesh, by_sequence);
  const at::Tensor target = placed_input(numbers.target, mesh, by_sequence);
  if (counts) check_messages(subject, instance, x, target, by_sequence);
  expect_same(train(instance, x, target), expected);
}

void check_block(const BlockCase& subject, int ranks, bool by_sequence, bool counts = true) {
  SCOPED_TRACE(subject.name + " over " + std::to_string(ranks) +
               (by_sequence ? " by sequence" : ""));
  const RunResults expected = train_alone(subject);
  test::run_ranks(ranks,
                  [&](int) { check_on_rank(subject, ranks, by_sequence, counts, expected); });
}

TEST(Blocks, AnMlpTrainsAsOnOneRank) {
  for (const int ranks : {2, 3, 4}) {
    for (const bool by_sequence : {false, true}) check_block(mlp(), ranks, by_sequence);
  }
}

TEST(Blocks, AGptBlockTrainsAsOnOneRank) {
  for (const int ranks : {2, 3, 4}) {
    for (const bool by_sequence : {false, true}) check_block(gpt(), ranks, by_sequence);
  }
}

TEST(Blocks, ALlamaBlockTrainsAsOnOneRank) {
  for (const int ranks : {2, 3, 4}) {
    for (const bool by_sequence : {false, true}) check_block(llama(kHeads), ranks, by_sequence);
  }
}

/// 3 KV heads on 3 ranks are split; 2 on 4 ranks, and 1 on any, are replicated.
TEST(Blocks, GroupedQueriesWithFewerKeysThanRanksTrainAsOnOneRank) {
  for (const auto& [kv_heads, ranks] : {std::pair{2, 4}, std::pair{1, 2}, std::pair{4, 2}}) {
    check_block(llama(kv_heads), ranks, /*by_sequence=*/false, /*counts=*/false);
  }
}

void check_all_on_process(int ranks) {
  for (const BlockCase& subject : {mlp(), gpt(), llama(kHeads)}) {
    const RunResults expected = train_alone(subject);
    for (const bool by_sequence : {false, true}) {
      check_on_rank(subject, ranks, by_sequence, /*counts=*/true, expected);
    }
  }
}

const testing::Scenario kOnTwo("blocks on two", [] { check_all_on_process(2); });
const testing::Scenario kOnThree("blocks on three", [] { check_all_on_process(3); });
const testing::Scenario kOnFour("blocks on four", [] { check_all_on_process(4); });

TEST(Blocks, OnProcessesAllTrainAsOnOneRank) {
  using testing::failures;
  using testing::run_processes;
  EXPECT_EQ(failures(run_processes(kOnTwo, {.size = 2})), "");
  EXPECT_EQ(failures(run_processes(kOnThree, {.size = 3})), "");
  EXPECT_EQ(failures(run_processes(kOnFour, {.size = 4})), "");
}

}  // namespace blocks_test
}  // namespace tessera::test
