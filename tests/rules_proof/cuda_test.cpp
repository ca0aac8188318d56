#include <ATen/Context.h>
#include <torch/version.h>

#include "tessera/rules/registry/registry.h"
#include "tests/rules_proof/prove_all.h"
#include "tests/rules_proof/sample_files.h"

/// Rows of kernels that only CUDA has, proven with the kernels themselves: attention through each
/// back-end, products of 8-bit and 4-bit numbers, groups of products, fused cells. Without a device
/// rows_test.cpp proves them with what stands in.
namespace tessera::test {
namespace cuda_test {

using Stack = torch::jit::Stack;
const c10::IValue kNone;

at::Tensor on(c10::Device device, const at::Tensor& t) { return t.defined() ? t.to(device) : t; }

using Kernel = decltype(Proven::call);
constexpr size_t kAll = std::numeric_limits<size_t>::max();

/// Calls the op on the device with tensors of the CPU, and brings its results back. What is beyond
/// the first `kept` (seeds, sizes, debug output) is no business of a rule.
Kernel on_device(size_t kept) {
  return [kept](const c10::OperatorHandle& op, Stack& stack) {
    for (auto& value : stack) {
      if (value.isTensor()) value = on(at::kCUDA, value.toTensor());
    }
    op.callBoxed(stack);
    for (size_t i = 0; i < stack.size(); ++i) {
      if (stack[i].isTensor())
        stack[i] = i < kept ? on(at::kCPU, stack[i].toTensor()) : at::Tensor();
    }
  };
}

void prove_on_device(const Sample& sample, Kernel kernel, std::optional<double> roundings,
                     Tally& tally) {
  const std::string op = name_of(sample.op);
  const Rule* rule = rules::find_rule(op);
  ASSERT_NE(rule, nullptr) << op;
  const Proven p = reference(
      {.rule = rule, .sample = &sample, .call = std::move(kernel), .roundings = roundings});
  for (const int ranks : {2, 4}) {
    std::set<std::string> done;
    prove_rows(p, DeviceMesh({{"x", ranks}}), std::vector<Placement>(p.operands.size()), done,
               tally);
  }
}

void report(const Tally& tally, int rows) {
  for (const auto& failure : tally.failures) ADD_FAILURE() << failure;
  EXPECT_GE(tally.rows, rows);
  std::printf("%d rows proven; %zu failures\n", tally.rows, tally.failures.size());
}

Sample sample_of(const std::string& op, Stack stack) { return {op, find_op(op), std::move(stack)}; }

/// All results of a forward, on the CPU.
Stack results_of(const Sample& sample) {
  Stack stack = sample.stack;
  on_device(kAll)(sample.op, stack);
  return stack;
}

class RulesOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
    at::manual_seed(5);
  }
  at::NoGradGuard no_grad_;
};

struct Attention {
  at::Tensor q, k, v, grad, bias;
  bool causal;
};

/// Heads, or fewer heads of keys; with and without a causal mask. The gradient is on a grid that
/// addends can share, so that only the kernels round.
std::vector<Attention> attentions(int64_t rows, at::ScalarType type, bool grouped) {
  const auto make = [&](int64_t heads) { return (at::randn({4, heads, rows, 64}) * 0.5).to(type); };
  const auto grad = [&](int64_t heads) {
    return at::randint(-2, 3, {4, heads, rows, 64}).to(type) * 0.5;
  };
  std::vector<Attention> out;
  for (const bool causal : {false, true})
    out.push_back({make(4), make(4), make(4), grad(4), {}, causal});
  if (grouped) out.push_back({make(8), make(4), make(4), grad(8), {}, false});
  return out;
}

/// Weights and their gradients are rounded on the way, so results to a few of their own roundings.
constexpr double kRoundings = 8;

TEST_F(RulesOnCuda, FlashAttention) {
  Tally tally;
  for (const auto& a : attentions(32, at::kHalf, /*grouped=*/true)) {
    const Sample forward = sample_of("aten::_scaled_dot_product_flash_attention",
                                     {a.q, a.k, a.v, 0.0, a.causal, false, kNone});
    prove_on_device(forward, on_device(2), kRoundings, tally);
    const Stack r = results_of(forward);
    prove_on_device(sample_of("aten::_scaled_dot_product_flash_attention_backward",
                              {a.grad, a.q, a.k, a.v, r[0], r[1], r[2], r[3], r[4], r[5], 0.0,
                               a.causal, r[6], r[7], kNone}),
                    on_device(3), kRoundings, tally);
  }
  report(tally, 44);
}

/// 128 rows: two and four ranks have multiples of 32 of them, and may shard the sequence.
TEST_F(RulesOnCuda, MemoryEfficientAttention) {
  constexpr double kOfThreeParts = 64;  // 32 bits, multiplied as sums of numbers of fewer
  Tally tally;
  auto all = attentions(128, at::kFloat, /*grouped=*/false);
  all.push_back(all[0]);
  all.back().bias = at::randn({4, 4, 128, 128});
  for (const auto& a : all) {
    const c10::IValue bias = a.bias.defined() ? c10::IValue(a.bias) : kNone;
    const Sample forward = sample_of("aten::_scaled_dot_product_efficient_attention",
                                     {a.q, a.k, a.v, bias, true, 0.0, a.causal, kNone});
    prove_on_device(forward, on_device(2), kOfThreeParts, tally);
    const Stack r = results_of(forward);
    const c10::List<bool> wanted({true, true, true, a.bias.defined()});
    prove_on_device(sample_of("aten::_scaled_dot_product_efficient_attention_backward",
                              {a.grad, a.q, a.k, a.v, a.bias, r[0], r[1], r[2], r[3], 0.0, wanted,
                               a.causal, kNone}),
                    on_device(4), kOfThreeParts, tally);
  }
  // Nothing is kept for a backward, so nothing is padded: any number of rows.
  const Attention few = attentions(20, at::kFloat, /*grouped=*/false)[0];
  prove_on_device(sample_of("aten::_scaled_dot_product_efficient_attention",
                            {few.q, few.k, few.v, kNone, false, 0.0, false, kNone}),
                  on_device(2), kOfThreeParts, tally);
  report(tally, 50);
}

TEST_F(RulesOnCuda, AttentionOfCudnn) {
  Tally tally;
  auto all = attentions(32, at::kHalf, /*grouped=*/true);
  all.push_back(all[0]);
  all.back().bias = at::randn({4, 4, 32, 32}).to(at::kHalf);
  for (const auto& a : all) {
    const c10::IValue bias = a.bias.defined() ? c10::IValue(a.bias) : kNone;
    const Sample forward = sample_of("aten::_scaled_dot_product_cudnn_attention",
                                     {a.q, a.k, a.v, bias, true, 0.0, a.causal, false, kNone});
    prove_on_device(forward, on_device(2), kRoundings, tally);
    const Stack r = results_of(forward);
    prove_on_device(sample_of("aten::_scaled_dot_product_cudnn_attention_backward",
                              {a.grad, a.q, a.k, a.v, r[0], r[1], r[6], r[7], a.bias, r[2], r[3],
                               r[4], r[5], 0.0, a.causal, kNone}),
                    on_device(3), kRoundings, tally);
  }
  report(tally, 56);
}

/// Operands are held in 32 bits, which the CPU can split, and have 8 where the kernel takes them:
/// the second one in columns. They are small integers and their scales powers of two: sums of their
/// products are exact in all types.
TEST_F(RulesOnCuda, ProductsOfEightBitFloats) {
  Tally tally;
  const auto integers = [] { return at::randint(-2, 3, {64, 64}, at::kFloat); };
  for (const bool by_row : {false, true}) {
    const auto scale = [&](std::vector<int64_t> shape) {
      return by_row ? at::exp2(at::randint(-2, 2, shape, at::kFloat)) : at::full({}, 0.5);
    };
    const Sample sample =
        sample_of("aten::_scaled_mm", {integers(), integers(), scale({64, 1}), scale({1, 64}),
                                       kNone, kNone, at::kBFloat16, false});
    const Kernel kernel = [](const c10::OperatorHandle& op, Stack& stack) {
      stack[0] = stack[0].toTensor().to(at::kFloat8_e4m3fn);
      stack[1] = stack[1].toTensor().to(at::kFloat8_e4m3fn).t().contiguous().t();
      on_device(1)(op, stack);
    };
    prove_on_device(sample, kernel, 0, tally);
  }
  report(tally, 8);
}

TEST_F(RulesOnCuda, ProductsOfFourBitIntegers) {
  const at::Tensor bytes = at::randint(0, 256, {64, 64}, at::kByte).to(at::kCUDA);
  const at::Tensor packed = at::_convert_weight_to_int4pack(bytes, /*innerKTiles=*/2).to(at::kCPU);
  const at::Tensor factors = at::randn({4, 64, 2}).to(at::kBFloat16);
  Tally tally;
  prove_on_device(sample_of("aten::_weight_int4pack_mm",
                            {at::randn({8, 128}).to(at::kBFloat16), packed, 32, factors}),
                  on_device(1), 1, tally);
  report(tally, 2);
}

TEST_F(RulesOnCuda, EveryOtherKernel) {
  Tally tally;
  for (const auto& line : lines_of(std::string(kSamples) + "/cuda/kernels.txt")) {
    if (!op_exists(line.substr(0, line.find(' ')))) continue;    // of a newer torch
    const bool exact = line.find(":bf16") != std::string::npos;  // small integers
    try {
      prove_on_device(parse_sample(line), on_device(4), exact ? std::optional(0.0) : std::nullopt,
                      tally);
    } catch (const std::exception& e) {
      ADD_FAILURE() << line << ": " << e.what();
    }
  }
  report(tally, 147);
}

}  // namespace cuda_test
}  // namespace tessera::test
