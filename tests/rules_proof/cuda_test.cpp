#include <ATen/Context.h>
#include <torch/version.h>

#include "tests/rules_proof/prove_all.h"
#include "tests/rules_proof/sample_files.h"

/// Rows of kernels that only CUDA has, proven with the kernels themselves: attention through each
/// back-end, products of 8-bit and 4-bit numbers, groups of products, fused cells. Without a device
/// rows_test.cpp proves them with what stands in.
namespace tessera::test {
namespace {

using Stack = torch::jit::Stack;
const c10::IValue kNone;

at::Tensor on(c10::Device device, const at::Tensor& t) { return t.defined() ? t.to(device) : t; }

/// Calls the op on the device with tensors of the CPU, and brings its results back. What is beyond
/// the first `kept` (seeds, sizes, debug output) is no business of a rule.
std::vector<at::Tensor> run_on_device(const Sample& sample, const std::vector<at::Tensor>& tensors,
                                      size_t kept) {
  std::vector<at::Tensor> moved;
  for (const auto& t : tensors) moved.push_back(on(at::kCUDA, t));
  Stack stack = with_tensors(sample, moved);
  sample.op.callBoxed(stack);
  auto out = tensors_in(stack, true);
  for (size_t i = 0; i < out.size(); ++i) out[i] = i < kept ? on(at::kCPU, out[i]) : at::Tensor();
  return out;
}

using Kernel = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

void prove_on_device(const Sample& sample, const Kernel& kernel, Tally& tally) {
  const std::string op = name_of(sample.op);
  const Rule* rule = rules::find_rule(op);
  ASSERT_NE(rule, nullptr) << op;
  Proven p{rule, &sample, operands_in(sample), {}, false, {}};
  p.expected = kernel(p.operands);
  p.kernel = [&](const std::vector<at::Tensor>& locals, auto, auto) { return kernel(locals); };
  for (const int ranks : {2, 4}) {
    std::set<std::string> done;
    prove_rows(p, DeviceMesh({{"x", ranks}}), std::vector<Placement>(p.operands.size()), done,
               tally);
  }
}

void prove_on_device(const Sample& sample, size_t kept, Tally& tally) {
  prove_on_device(
      sample, [&](const auto& locals) { return run_on_device(sample, locals, kept); }, tally);
}

void report(const Tally& tally, int rows) {
  for (const auto& failure : tally.failures) ADD_FAILURE() << failure;
  EXPECT_GE(tally.rows, rows);
  std::printf("%d rows proven; %zu failures\n", tally.rows, tally.failures.size());
}

Sample sample_of(const std::string& op, Stack stack) { return {op, find_op(op), std::move(stack)}; }

/// All results of a forward, on the CPU.
Stack results_of(const Sample& sample) {
  std::vector<at::Tensor> moved;
  for (const auto& t : operands_in(sample)) moved.push_back(on(at::kCUDA, t));
  Stack stack = with_tensors(sample, moved);
  sample.op.callBoxed(stack);
  for (auto& value : stack) {
    if (value.isTensor()) value = on(at::kCPU, value.toTensor());
  }
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
  at::Tensor q, k, v, grad;
  bool causal;
};

/// Heads, or fewer heads of keys; with and without a causal mask.
std::vector<Attention> attentions(bool grouped) {
  const auto make = [](int64_t heads) {
    return (at::randn({4, heads, 32, 64}) * 0.5).to(at::kBFloat16);
  };
  std::vector<Attention> out;
  for (const bool causal : {false, true})
    out.push_back({make(4), make(4), make(4), make(4), causal});
  if (grouped) out.push_back({make(8), make(4), make(4), make(8), false});
  return out;
}

TEST_F(RulesOnCuda, FlashAttention) {
  Tally tally;
  for (const auto& a : attentions(true)) {
    const Sample forward = sample_of("aten::_scaled_dot_product_flash_attention",
                                     {a.q, a.k, a.v, 0.0, a.causal, false, kNone});
    prove_on_device(forward, 2, tally);
    const Stack r = results_of(forward);
    prove_on_device(sample_of("aten::_scaled_dot_product_flash_attention_backward",
                              {a.grad, a.q, a.k, a.v, r[0], r[1], r[2], r[3], r[4], r[5], 0.0,
                               a.causal, r[6], r[7], kNone}),
                    3, tally);
  }
  report(tally, 25);
}

TEST_F(RulesOnCuda, MemoryEfficientAttention) {
  Tally tally;
  for (const auto& a : attentions(false)) {
    const Sample forward = sample_of("aten::_scaled_dot_product_efficient_attention",
                                     {a.q, a.k, a.v, kNone, true, 0.0, a.causal, kNone});
    prove_on_device(forward, 2, tally);
    const Stack r = results_of(forward);
    prove_on_device(sample_of("aten::_scaled_dot_product_efficient_attention_backward",
                              {a.grad, a.q, a.k, a.v, at::Tensor(), r[0], r[1], r[2], r[3], 0.0,
                               c10::List<bool>({true, true, true, false}), a.causal, kNone}),
                    3, tally);
  }
  report(tally, 15);
}

TEST_F(RulesOnCuda, AttentionOfCudnn) {
  Tally tally;
  for (const auto& a : attentions(false)) {
    const Sample forward = sample_of("aten::_scaled_dot_product_cudnn_attention",
                                     {a.q, a.k, a.v, kNone, true, 0.0, a.causal, false, kNone});
    prove_on_device(forward, 2, tally);
    const Stack r = results_of(forward);
    prove_on_device(sample_of("aten::_scaled_dot_product_cudnn_attention_backward",
                              {a.grad, a.q, a.k, a.v, r[0], r[1], r[6], r[7], at::Tensor(), r[2],
                               r[3], r[4], r[5], 0.0, a.causal, kNone}),
                    3, tally);
  }
  report(tally, 15);
}

/// Operands are held in 32 bits, which the CPU can cut, and have 8 where the kernel takes them: the
/// second one in columns.
TEST_F(RulesOnCuda, ProductsOfEightBitFloats) {
  Tally tally;
  for (const bool by_row : {false, true}) {
    const auto scale = [&](std::vector<int64_t> shape) {
      return by_row ? at::rand(shape) + 0.5 : at::full({}, 0.5);
    };
    const Sample sample =
        sample_of("aten::_scaled_mm", {at::randn({64, 64}), at::randn({64, 64}), scale({64, 1}),
                                       scale({1, 64}), kNone, kNone, at::kBFloat16, false});
    const Kernel kernel = [&](std::vector<at::Tensor> locals) {
      locals[0] = locals[0].to(at::kFloat8_e4m3fn);
      locals[1] = locals[1].to(at::kFloat8_e4m3fn).t().contiguous().t();
      return run_on_device(sample, locals, 1);
    };
    prove_on_device(sample, kernel, tally);
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
                  1, tally);
  report(tally, 1);
}

TEST_F(RulesOnCuda, EveryOtherKernel) {
  Tally tally;
  for (const auto& line : lines_of(std::string(kSamples) + "/cuda/kernels.txt")) {
    if (!op_exists(line.substr(0, line.find(' ')))) continue;  // of a newer torch
    try {
      prove_on_device(parse_sample(line), 4, tally);
    } catch (const std::exception& e) {
      ADD_FAILURE() << line << ": " << e.what();
    }
  }
  report(tally, 60);
}

}  // namespace
}  // namespace tessera::test
