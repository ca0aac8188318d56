#include "tests/rules_proof/prove_all.h"

namespace tessera::test {
namespace {

constexpr const char* kNorms[] = {
    "aten::native_layer_norm 5x3x4 4 4 normalized_shape={4} eps=1e-5",
    "aten::native_layer_norm 5x3x4 3x4 3x4 normalized_shape={3,4} eps=1e-5",
    "aten::native_layer_norm 5x3x4 - - normalized_shape={4} eps=1e-5",
    "aten::native_layer_norm_backward 5x3x4 5x3x4 5x3x1 5x3x1:pos 4 4 normalized_shape={4} "
    "output_mask={true,true,true}",
    "aten::native_layer_norm_backward 5x3x4 5x3x4 5x1x1 5x1x1:pos 3x4 3x4 normalized_shape={3,4} "
    "output_mask={true,true,true}",
    "aten::native_layer_norm_backward 5x4 5x4 5x1 5x1:pos - - normalized_shape={4} "
    "output_mask={true,false,false}",
    "aten::native_group_norm 5x6x2x2 6 6 N=5 C=6 HxW=4 group=3 eps=1e-5",
    "aten::native_group_norm 5x8x3 - - N=5 C=8 HxW=3 group=4 eps=1e-5",
    "aten::native_group_norm_backward 5x8x3 5x8x3 5x4 5x4:pos 8 N=5 C=8 HxW=3 group=4 "
    "output_mask={true,true,true}",
    "aten::native_batch_norm 5x4x3 4 4 4 4:pos training=true momentum=0.1 eps=1e-5",
    "aten::native_batch_norm 5x4x3 4 4 4 4:pos training=false momentum=0.1 eps=1e-5",
    "aten::_native_batch_norm_legit.no_stats 5x4x3 4 4 training=true momentum=0.1 eps=1e-5",
    "aten::_native_batch_norm_legit_no_training 5x4x3 4 4 4 4:pos momentum=0.1 eps=1e-5",
    "aten::native_batch_norm_backward 5x4x3 5x4x3 4 4 4:pos 4 4:pos train=true eps=1e-5 "
    "output_mask={true,true,true}",
    "aten::native_batch_norm_backward 5x4x3 5x4x3 4 4 4:pos 0 0 train=false eps=1e-5 "
    "output_mask={true,true,true}",
};

constexpr const char* kLosses[] = {
    "aten::mse_loss 5x3 5x3 reduction=0",
    "aten::mse_loss 5x3 5x3 reduction=1",
    "aten::mse_loss 5x3 5x3 reduction=2",
    "aten::mse_loss_backward scalar 5x3 5x3 reduction=1",
    "aten::mse_loss_backward scalar 5x3 5x3 reduction=2",
    "aten::mse_loss_backward 5x3 5x3 5x3 reduction=0",
    "aten::smooth_l1_loss 5x3 5x3 reduction=1 beta=1.0",
    "aten::smooth_l1_loss_backward scalar 5x3 5x3 reduction=1 beta=1.0",
    "aten::huber_loss 5x3 5x3 reduction=1 delta=1.0",
    "aten::huber_loss_backward scalar 5x3 5x3 reduction=1 delta=1.0",
    "aten::soft_margin_loss 5x3 5x3 reduction=1",
    "aten::soft_margin_loss_backward scalar 5x3 5x3 reduction=1",
    "aten::binary_cross_entropy 5x3:prob 5x3:prob - reduction=1",
    "aten::binary_cross_entropy 5x3:prob 5x3:prob 3:pos reduction=2",
    "aten::binary_cross_entropy_backward scalar 5x3:prob 5x3:prob - reduction=1",
    "aten::binary_cross_entropy_with_logits 5x3 5x3:prob - 3:pos reduction=1",
    "aten::binary_cross_entropy_with_logits 5x3 5x3:prob 5x3:pos - reduction=0",
    "aten::multi_margin_loss 5x3 5:i64<3 reduction=1",
    "aten::multi_margin_loss 5x3 5:i64<3 reduction=0",
    "aten::multi_margin_loss_backward scalar 5x3 5:i64<3 reduction=1 p=1 margin=1.0",
    "aten::multilabel_margin_loss_forward 5x3 5x3:i64<3 reduction=1",
    "aten::multilabel_margin_loss_forward 5x3 5x3:i64<3 reduction=0",
    "aten::nll_loss_forward 5x3 5:i64<3 3:pos reduction=0 ignore_index=-100",
    "aten::nll_loss_forward 5x3 5:i64<3 3:pos reduction=1 ignore_index=-100",
    "aten::nll_loss_forward 5x3 5:i64<3 - reduction=2 ignore_index=1",
    "aten::nll_loss_backward scalar 5x3 5:i64<3 3:pos reduction=1 ignore_index=1 "
    "total_weight=scalar:pos",
    "aten::nll_loss_backward 5 5x3 5:i64<3 3:pos reduction=0 ignore_index=1 "
    "total_weight=scalar:pos",
    "aten::nll_loss2d_forward 5x3x2x4 5x2x4:i64<3 3:pos reduction=2 ignore_index=-100",
    "aten::nll_loss2d_forward 5x3x2x4 5x2x4:i64<3 3:pos reduction=0 ignore_index=-100",
    "aten::nll_loss2d_backward scalar 5x3x2x4 5x2x4:i64<3 - reduction=1 ignore_index=1 "
    "total_weight=scalar:pos",
};

constexpr const char* kAttention[] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu 3x5x6x4 3x5x7x4 3x5x7x4",
    "aten::_scaled_dot_product_flash_attention_for_cpu 3x5x6x4 3x5x6x4 3x5x6x4 is_causal=true",
    "aten::_scaled_dot_product_flash_attention_for_cpu 3x5x6x4 3x5x7x4 3x5x7x4 attn_mask=3x5x6x7",
    "aten::_scaled_dot_product_flash_attention_for_cpu 3x5x6x4 3x5x7x4 3x5x7x4 attn_mask=1x1x6x7",
    "aten::_scaled_dot_product_flash_attention_for_cpu 3x5x6x4 3x5x7x4 3x5x7x4 attn_mask=6x7",
    "aten::_scaled_dot_product_flash_attention_for_cpu 3x8x6x4 3x4x7x4 3x4x7x4",
    "aten::_scaled_dot_product_flash_attention_for_cpu 3x8x6x4 3x4x6x4 3x4x6x4 is_causal=true",
    "aten::_scaled_dot_product_flash_attention_for_cpu 3x8x6x4 3x4x7x4 3x4x7x4 attn_mask=3x8x6x7",
    "aten::_scaled_dot_product_flash_attention_for_cpu 3x8x6x4 3x4x7x4 3x4x7x4 attn_mask=6x7",
};

TEST(RulesOfNorms, EveryRowIsRight) { EXPECT_GT(prove_lines(kNorms).rows, 150); }
TEST(RulesOfLosses, EveryRowIsRight) { EXPECT_GT(prove_lines(kLosses).rows, 400); }
TEST(RulesOfAttention, EveryRowIsRight) { EXPECT_GT(prove_lines(kAttention).rows, 30); }

/// The backward needs what the forward gave.
TEST(RulesOfAttention, EveryRowOfTheBackwardIsRight) {
  at::NoGradGuard no_grad;
  Tally tally;
  struct Case {
    bool causal;
    int64_t heads, key_heads;
    std::vector<int64_t> mask;
  };
  for (const auto& [causal, heads, key_heads, mask_shape] :
       {Case{false, 5, 5, {3, 5, 6, 6}}, Case{true, 5, 5, {}}, Case{false, 5, 5, {6, 6}},
        Case{false, 8, 4, {}}, Case{true, 8, 4, {}}, Case{false, 8, 4, {3, 1, 6, 6}}}) {
    at::manual_seed(7);
    std::mt19937 rng(7);
    const auto real = at::TensorOptions().dtype(at::kDouble);
    const auto q = at::randn({3, heads, 6, 4}, real), k = at::randn({3, key_heads, 6, 4}, real),
               v = at::randn({3, key_heads, 6, 4}, real);
    const auto mask = mask_shape.empty() ? at::Tensor() : at::randn(mask_shape, real);
    const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, mask.defined() ? std::optional<at::Tensor>(mask) : std::nullopt);
    Sample sample{"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
                  find_op("aten::_scaled_dot_product_flash_attention_for_cpu_backward"),
                  {at::randn_like(out), q, k, v, out, lse, 0.0, causal,
                   mask.defined() ? c10::IValue(mask) : c10::IValue(), c10::IValue()}};
    const Rule* rule = rules::find_rule(sample.text);
    ASSERT_NE(rule, nullptr);
    const Proven p = reference(*rule, sample);
    for (int ranks = 1; ranks <= 4; ++ranks) {
      std::set<std::string> done;
      prove_rows(p, DeviceMesh({{"x", ranks}}), std::vector<Placement>(p.operands.size()), done,
                 tally);
    }
    for (int i = 0; i < 4; ++i) prove_choice(p, DeviceMesh::parse("x=2,y=2"), rng, tally);
  }
  for (const auto& failure : tally.failures) ADD_FAILURE() << failure;
  EXPECT_GT(tally.rows, 60);
}

}  // namespace
}  // namespace tessera::test
