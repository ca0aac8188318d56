#include "tests/rules_proof/prove_all.h"

namespace tessera::test {
namespace {

constexpr const char* kLines[] = {
    "aten::_foreach_add.List [5x3;4;2x2] [5x3;4;2x2]",
    "aten::_foreach_add.Scalar [5x3;4] scalar=2",
    "aten::_foreach_add.ScalarList [5x3;4] scalars={2,3}",
    "aten::_foreach_add.Tensor [5x3;4] scalar",
    "aten::_foreach_add_.List [5x3;4] [5x3;4]",
    "aten::_foreach_mul_.Scalar [5x3;4] scalar=2",
    "aten::_foreach_mul.Tensor [5x3;4] scalar",
    "aten::_foreach_div.List [5x3;4] [5x3:pos;4:pos]",
    "aten::_foreach_sqrt [5x3:pos;4:pos]",
    "aten::_foreach_neg_ [5x3;4]",
    "aten::_foreach_zero_ [5x3;4]",
    "aten::_foreach_clone [5x3;4]",
    "aten::_foreach_addcmul.Scalar [5x3;4] [5x3;4] [5x3;4]",
    "aten::_foreach_addcdiv_.ScalarList [5x3;4] [5x3;4] [5x3:pos;4:pos] scalars={1,2}",
    "aten::_foreach_lerp.Scalar [5x3;4] [5x3;4] weight=0.3",
    "aten::_foreach_lerp_.List [5x3;4] [5x3;4] [5x3;4]",
    "aten::_foreach_maximum.List [5x3;4] [5x3;4]",
    "aten::_foreach_maximum.Scalar [5x3;4] scalar=0",
    "aten::_foreach_clamp_max_.Scalar [5x3;4] scalar=0",
    "aten::_foreach_pow.Scalar [5x3:pos;4:pos] exponent=2",
    "aten::_foreach_pow.ScalarAndTensor [5x3:pos;4:pos] self=2",
    "aten::_foreach_copy_ [5x3;4] [5x3;4]",
    "aten::_foreach_norm.Scalar [5x3;4]",
    "aten::_foreach_norm.Scalar [5x3;4] ord=1",
    "aten::_foreach_max [5x3;4]",
    "aten::_foreach_mm [5x3;2x4] [3x4;4x2]",
    "aten::_fused_sgd_ [5x3;4] [5x3;4] [5x3;4] weight_decay=0.1 momentum=0.9 lr=0.1 dampening=0.0 "
    "nesterov=false "
    "maximize=false is_first_step=false",
    "aten::_fused_adamw_ [5x3;4] [5x3;4] [5x3;4] [5x3:pos;4:pos] [] [scalar:pos;scalar:pos] lr=0.1 "
    "beta1=0.9 beta2=0.99 "
    "weight_decay=0.1 eps=1e-8 amsgrad=false maximize=false",
    "aten::_fused_adam_ [5x3] [5x3] [5x3] [5x3:pos] [5x3:pos] [scalar:pos] lr=0.1 beta1=0.9 "
    "beta2=0.99 "
    "weight_decay=0.1 eps=1e-8 amsgrad=true maximize=false",
    "aten::_fused_adagrad_ [5x3] [5x3] [5x3:pos] [scalar:pos] lr=0.1 lr_decay=0.1 weight_decay=0.1 "
    "eps=1e-8 maximize=false",
    "aten::new_zeros 5x3 size={5,3}",
    "aten::new_zeros 5x3 size={2}",
    "aten::new_full 5x3 size={5,3} fill_value=2",
    "aten::view.dtype 5x3 dtype=4",
    "aten::view.dtype 5x3 dtype=6",
    "aten::renorm 5x3 p=2 dim=0 maxnorm=1",
    "aten::_weight_norm_interface 5x3x2 5x1x1 dim=0",
    "aten::_embedding_bag 7x4 6:i64<7 3:i64<2 mode=0",
    "aten::transpose_ 5x3 dim0=0 dim1=1",
    "aten::__ilshift__.Scalar 5x3:i64 other=1",
};

TEST(RulesOfLists, EveryChoiceIsRight) { EXPECT_GT(prove_lines(kLines).choices, 700); }

/// No CPU kernel: the formula stands in for it.
TEST(RulesOfLists, LinearBackwardIsRight) {
  at::NoGradGuard no_grad;
  at::manual_seed(3);
  std::mt19937 rng(3);
  Tally tally;
  const auto kernel = [](const std::vector<at::Tensor>& t, std::span<const Sharding>,
                         std::span<const Sharding>) {
    const auto x = t[0].flatten(0, -2), g = t[1].flatten(0, -2);
    return std::vector<at::Tensor>{at::matmul(t[1], t[2]), at::mm(g.t(), x), g.sum(0)};
  };
  const Sample sample =
      parse_sample("aten::linear_backward 2x5x3 2x5x4 4x3 output_mask={true,true,true}");
  Proven p{
      rules::find_rule("aten::linear_backward"), &sample, operands_in(sample), {}, false, kernel};
  p.expected = kernel(p.operands, {}, {});
  for (int ranks = 1; ranks <= 4; ++ranks) {
    std::set<std::string> done;
    const DeviceMesh mesh({{"x", ranks}});
    prove_rows(p, mesh, std::vector<Placement>(3), done, tally);
  }
  for (int i = 0; i < 8; ++i) prove_choice(p, DeviceMesh::parse("x=2,y=2"), rng, tally);
  for (const auto& failure : tally.failures) ADD_FAILURE() << failure;
  EXPECT_GT(tally.rows, 5);
}

/// Rows of a table that are elsewhere count as zeros.
TEST(RulesOfLists, MaskedEmbeddingIsRight) {
  at::NoGradGuard no_grad;
  at::manual_seed(5);
  rules::enable_handler("mask");
  const Sample forward = parse_sample("aten::embedding 7x4 5x3:i64<7");
  Proven f = reference(*rules::find_rule("aten::embedding"), forward);
  f.kernel = [](const std::vector<at::Tensor>& t, std::span<const Sharding> operands,
                std::span<const Sharding>) {
    const auto begin = operands[0].local_offset()[0], size = operands[0].local_shape()[0];
    const auto here = at::logical_and(t[1] >= begin, t[1] < begin + size);
    if (size == 0)
      return std::vector<at::Tensor>{
          at::zeros({t[1].size(0), t[1].size(1), t[0].size(1)}, t[0].options())};
    const auto rows = at::embedding(t[0], at::where(here, t[1] - begin, 0));
    return std::vector<at::Tensor>{rows * here.unsqueeze(-1)};
  };
  const Sample backward = parse_sample(
      "aten::embedding_dense_backward 5x3x4 5x3:i64<7 num_weights=7 padding_idx=-1 "
      "scale_grad_by_freq=false");
  Proven b = reference(*rules::find_rule("aten::embedding_dense_backward"), backward);
  b.kernel = [](const std::vector<at::Tensor>& t, std::span<const Sharding>,
                std::span<const Sharding> results) {
    const auto all = at::embedding_dense_backward(t[0], t[1], 7, -1, false);
    return std::vector<at::Tensor>{all.narrow(0, std::min<int64_t>(7, results[0].local_offset()[0]),
                                              results[0].local_shape()[0])};
  };
  int masked = 0;
  for (const Proven* p : {&f, &b}) {
    for (int ranks = 2; ranks <= 4; ++ranks) {
      const DeviceMesh mesh({{"x", ranks}});
      const Call call(*p->sample, mesh, [&](size_t, const at::Tensor& t) {
        return sharding_of(t, mesh, {Replicate()});
      });
      for (const auto& row : p->rule->rows(call.get(), 0)) {
        if (row.handler != "mask") continue;
        ++masked;
        EXPECT_EQ(disproof(*p, call.get(), by_operand(row.operands), by_operand(row.results), {}),
                  "")
            << row_text(row.operands, row.results) << " of " << p->sample->text;
      }
    }
  }
  EXPECT_EQ(masked, 6);
}

}  // namespace
}  // namespace tessera::test
