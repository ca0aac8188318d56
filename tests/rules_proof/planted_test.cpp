#include "tessera/base/shape.h"
#include "tessera/rules/registry/registry.h"
#include "tests/rules_proof/dispatched_rows.h"
#include "tests/rules_proof/size_variants.h"

/// The proof must catch wrong rules; each of these is a mistake that could be made.
namespace tessera::test {
namespace planted_test {

struct Planted {
  const char* what;
  const char* sample;
  const char* rule;
};

constexpr Planted kPlanted[] = {
    {"a summed dim that leaves nothing partial", "aten::mm 5x6 6x4", "mk, kn -> mn ; linear 0+1"},
    {"rows and columns mixed up", "aten::mm 4x6 6x4", "mk, kn -> nm"},
    {"a bias that is added on every rank", "aten::addmm 4 5x6 6x4", "n, mk, kn -> mn"},
    {"a scalar added to a sum", "aten::add.Scalar 5x3 other=2", "* -> * ; linear 0"},
    {"an order that a function does not keep", "aten::sin 5x3", "* -> * ; order 0"},
    {"a function with holes taken as monotone", "aten::log 5x3:pos", "* -> * ; order 0"},
    {"a max that a falling function turns into a min", "aten::neg 5x3", "* -> * ; order 0"},
    {"a product of two sums", "aten::mul.Tensor 5x3 5x3", "*, * -> * ; linear 0+1"},
    {"softmax along a sharded dim", "aten::_softmax 5x3 dim=1 half_to_float=false", "* -> *"},
    {"the mean of means of uneven parts", "aten::mean.dim 5x3 dim={0}", "* -> * ; reduce $dim sum"},
    {"a variance in parts", "aten::var.correction 5x3 dim={0}", "* -> * ; reduce $dim avg"},
    {"a maximum that sees empty parts", "aten::amax 5x3 dim={0}", "* -> * ; reduce $dim max"},
    {"a gradient of a mean that counts local elements",
     "aten::mse_loss_backward scalar 5x3 5x3 reduction=1", "*, *, * -> *"},
    {"a weight gradient that is not partial",
     "aten::native_layer_norm_backward 5x4 5x4 5x1 5x1:pos 4 4 "
     "normalized_shape={4} output_mask={true,true,true}",
     "*X.., *X.., *1.., *1.., X..?, X..? -> *X.., X..!*, X..!* ; rank X $normalized_shape"},
    {"causal attention with sharded rows",
     "aten::_scaled_dot_product_flash_attention_for_cpu 3x5x6x4 3x5x6x4 3x5x6x4 is_causal=true",
     "bhqD, bhKD, bhKE, bhqK? -> bhqE, bhq ; nonempty"},
    {"a Fourier transform of a maximum", "aten::_fft_r2c 5x4 dim={1} normalization=0 onesided=true",
     "* -> * ; whole $dim ; pass max 0 ; nonempty"},
    {"a gather along a sharded dim", "aten::gather 4x4 4x4:i64<4 dim=1", "*, * -> *"},
    {"a broadcast where there is none", "aten::gather 5x4 1x2:i64<4 dim=1", "aB, aC -> aC"},
    {"groups that are split", "aten::native_group_norm 5x6x2 6 6 N=5 C=6 HxW=2 group=2 eps=1e-5",
     "ncS.., c?, c? -> ncS.., nG, nG ; local $N n ; local $C 0.1"},
    {"an attribute left global", "aten::native_group_norm 5x6x2 6 6 N=5 C=6 HxW=2 group=2 eps=1e-5",
     "nCS.., C?, C? -> nCS.., nG, nG"},
    {"truth values added up", "aten::logical_not 5x3", "* -> * ; linear 0"},
};

TEST(PlantedErrors, AreAllCaught) {
  at::NoGradGuard no_grad;
  for (const auto& planted : kPlanted) {
    const std::string line = planted.sample;
    const rules::Rule wrong = [&] {
      rules::register_rule("test::" + line.substr(6, line.find(' ') - 6), planted.rule);
      return *rules::find_rule("test::" + line.substr(6, line.find(' ') - 6));
    }();
    Tally tally;
    prove_sample(line, 11, tally, &wrong);
    EXPECT_FALSE(tally.failures.empty())
        << "not caught: " << planted.what << "\n  " << planted.rule;
  }
}

/// A cast that is not linear, a view that keeps too much: the code rules' own mistakes.
TEST(PlantedErrors, InCodeRulesAreCaught) {
  at::NoGradGuard no_grad;
  rules::Rule view = *rules::find_rule("aten::view");
  view.joint = [](const rules::OpCall& call) {
    const auto& self = std::get<Sharding>(call.args[0].value);
    std::vector<Placement> kept(self.placements().begin(), self.placements().end());
    std::vector<Placement> first = kept;
    for (auto& p : first) p = p.is_sharded() ? Shard(0) : p;
    return std::vector<rules::JointRow>{{{kept}, {first}, {}}};
  };
  Tally tally;
  prove_sample("aten::view 5x6 size={30}", 11, tally, &view);
  EXPECT_FALSE(tally.failures.empty());
}

/// Right on one axis, wrong on another: rows are proven on meshes of two and three axes too.
TEST(PlantedErrors, OnTheSecondOrThirdAxisAloneAreCaught) {
  at::NoGradGuard no_grad;
  for (const int bad : {1, 2}) {
    rules::Rule rule = *rules::find_rule("aten::mm");
    rule.rows = [bad, rows = rule.rows](const rules::OpCall& call, int axis) {
      auto out = rows(call, axis);
      for (auto& row : out) {
        if (axis == bad && row.results[0] == Partial()) row.results[0] = Replicate();
      }
      return out;
    };
    Tally tally;
    for (unsigned seed = 1; seed <= 12; ++seed)
      prove_sample("aten::mm 8x8 8x8", seed, tally, &rule);
    EXPECT_FALSE(tally.failures.empty()) << "axis " << bad;
  }
}

/// In 16 bits, as kernels of CUDA are proven: small integers exactly, else to a few roundings.
TEST(PlantedErrors, OfMoreThanTheRoundingsOfAKernelAreCaught) {
  at::NoGradGuard no_grad;
  const auto failures = [](const std::string& line, double roundings, double factor) {
    at::manual_seed(11);
    Sample sample = parse_sample(line);
    if (roundings > 0) {
      for (auto& value : sample.stack) value = at::randn(value.toTensor().sizes()).to(at::kHalf);
    }
    Proven p = reference(
        {.rule = rules::find_rule("aten::mm"), .sample = &sample, .roundings = roundings});
    p.call = [factor](const c10::OperatorHandle& op, torch::jit::Stack& stack) {
      call_op(op, stack);
      stack[0] = stack[0].toTensor() * factor;
    };
    Tally tally;
    std::set<std::string> done;
    prove_rows(p, DeviceMesh::parse("x=4"), std::vector<Placement>(2), done, tally);
    EXPECT_EQ(tally.rows, 7) << line;
    return tally.failures.size();
  };
  const std::string exact = "aten::mm 8x32:bf16 32x4:bf16";
  EXPECT_EQ(failures(exact, 0, 1), 0U);
  EXPECT_EQ(failures(exact, 0, 1 + 0x1p-6), 7U);
  EXPECT_EQ(failures("aten::mm 8x32:f32 32x4:f32", 8, 1), 0U);
  EXPECT_EQ(failures("aten::mm 8x32:f32 32x4:f32", 8, 1.1), 7U);
}

struct PlantedGradient {
  const char* what;
  const char* sample;
  const char* backward;
  const char* rule;
};

constexpr PlantedGradient kPlantedGradients[] = {
    {"a mean's gradient that counts the local elements", "aten::mse_loss 5x3 5x3 reduction=1",
     "aten::mse_loss_backward", "*, *, * -> *"},
    {"a weight's gradient that is not summed",
     "aten::native_layer_norm 5x4 4 4 normalized_shape={4} eps=1e-5",
     "aten::native_layer_norm_backward",
     "*X.., *X.., *1.., *1.., X..?, X..? -> *X.., X..!*, X..!* ; rank X $normalized_shape"},
    {"softmax's gradient along a sharded dim", "aten::_softmax 6x4 dim=1 half_to_float=false",
     "aten::_softmax_backward_data", "*, * -> *"},
    {"a bias's gradient of each part", "aten::linear 2x5x3 4x3 4", "aten::linear_backward",
     "*k, *n, nk -> *k, nk!*, n!*"},
};

/// The op's own rule is right, that of its derivative is not.
TEST(PlantedErrors, InGradientsAreCaught) {
  for (const auto& planted : kPlantedGradients) {
    const rules::Rule right = *rules::find_rule(planted.backward);
    Tally before, after;
    for (unsigned seed = 1; seed <= 3; ++seed) prove_dispatch(planted.sample, seed, true, before);
    EXPECT_TRUE(before.failures.empty()) << planted.what << "\n  " << before.failures.front();
    rules::register_rule(planted.backward, planted.rule);
    for (unsigned seed = 1; seed <= 3; ++seed) prove_dispatch(planted.sample, seed, true, after);
    rules::register_rule(right);
    EXPECT_FALSE(after.failures.empty()) << "not caught: " << planted.what;
  }
}

/// Wrong in one size only: each is among the sizes that samples are tried in.
TEST(PlantedErrors, InOneSizeAloneAreCaught) {
  for (const int64_t size : {1, 0, 8}) {
    rules::Rule rule = *rules::find_rule("aten::neg");
    const rules::Rule right = rule;
    rule.scale = [size](const rules::OpCall& call, std::span<const Sharding>) {
      const auto shape = std::get<Sharding>(call.args[0].value).shape();
      const bool here = std::ranges::find(shape, size) != shape.end();
      return std::vector<double>{here ? 3.0 : 1.0};
    };
    rule.infer = [size](const rules::OpCall& call) {
      const auto& self = std::get<Sharding>(call.args[0].value);
      std::vector<int64_t> shape(self.shape().begin(), self.shape().end());
      if (std::ranges::find(shape, int64_t{0}) != shape.end() && size == 0) shape.push_back(1);
      return std::vector<rules::ResultMeta>{{shape, contiguous_stride(shape), self.dtype()}};
    };
    Tally tally;
    std::mt19937 rng(3);
    rules::register_rule(rule);
    prove_dispatch("aten::neg 5x3", 3, true, tally);
    EXPECT_TRUE(tally.failures.empty()) << tally.failures.front();
    for (const auto& other : size_variants("aten::neg 5x3", rng))
      prove_dispatch(other, 3, false, tally);
    rules::register_rule(right);
    EXPECT_FALSE(tally.failures.empty()) << "size " << size;
  }
}

}  // namespace planted_test
}  // namespace tessera::test
