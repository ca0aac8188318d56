#include "tests/rules/golden.h"

#include <gtest/gtest.h>

#include <set>

#include "tessera/base/errors.h"
#include "tessera/rules/registry/registry.h"

namespace tessera::test {
namespace golden_test {

struct Golden {
  const char* call;
  const char* rows;  // separated by ';', all replicated left out
};

constexpr Golden kGoldens[] = {
    {"aten::mm 8x6 6x4",
     "S0,R -> S0; S1,S0 -> P(sum); R,S1 -> S1; P(sum),R -> P(sum); P(avg),R -> P(avg); "
     "R,P(sum) -> P(sum); R,P(avg) -> P(avg)"},
    {"aten::mm 8x6:i64 6x4:i64",
     "S0,R -> S0; S1,S0 -> P(sum); R,S1 -> S1; P(sum),R -> P(sum); R,P(sum) -> P(sum)"},
    {"aten::mm 8x1 1x4",
     "S0,R -> S0; R,S1 -> S1; P(sum),R -> P(sum); P(avg),R -> P(avg); R,P(sum) -> P(sum); R,P(avg) "
     "-> P(avg)"},
    {"aten::bmm 3x8x6 3x6x4",
     "S0,S0 -> S0; S1,R -> S1; S2,S1 -> P(sum); R,S2 -> S2; P(sum),R -> P(sum); P(avg),R -> "
     "P(avg); "
     "R,P(sum) -> P(sum); R,P(avg) -> P(avg)"},
    {"aten::addmm 4 8x6 6x4",
     "R,S0,R -> S0; S0,R,S1 -> S1; P(sum),S1,S0 -> P(sum); P(sum),P(sum),R -> P(sum); "
     "P(avg),P(avg),R -> P(avg); "
     "P(sum),R,P(sum) -> P(sum); P(avg),R,P(avg) -> P(avg); P(avg),R,R -> P(avg)"},
    {"aten::linear 2x5x3 4x3 4",
     "S0,R,R -> S0; S1,R,R -> S1; S2,S1,P(sum) -> P(sum); R,S0,S0 -> S2; P(sum),R,P(sum) -> "
     "P(sum); "
     "P(avg),R,P(avg) -> P(avg); R,P(sum),P(sum) -> P(sum); R,P(avg),P(avg) -> P(avg)"},
    {"aten::linear_backward 2x5x3 2x5x4 4x3",
     "S0,S0,R -> S0,P(sum),P(sum); S1,S1,R -> S1,P(sum),P(sum); S2,R,S1 -> S2,S1,R; R,S2,S0 -> "
     "P(sum),S0,S0; "
     "R,P(sum),R -> P(sum),P(sum),P(sum); R,P(avg),R -> P(avg),P(avg),P(avg)"},
    {"aten::t 8x6:c64", "S0 -> S1; S1 -> S0; P(sum) -> P(sum)"},
    {"aten::add.Tensor 8x6 1x6",
     "S0,R -> S0; S1,S1 -> S1; P(sum),P(sum) -> P(sum); P(avg),P(avg) -> P(avg); P(avg),R -> "
     "P(avg); "
     "R,P(avg) -> P(avg); P(max),R -> P(max); P(min),R -> P(min)"},
    {"aten::mul.Tensor 8x6:c64 8x6:c64",
     "S0,S0 -> S0; S1,S1 -> S1; P(sum),R -> P(sum); R,P(sum) -> P(sum)"},
    {"aten::mul.Tensor 8:bool 8:bool", "S0,S0 -> S0"},
    {"aten::gt.Scalar 8 other=2", "S0 -> S0"},
    {"aten::exp 8", "S0 -> S0; P(max) -> P(max); P(min) -> P(min)"},
    {"aten::log 8", "S0 -> S0"},
    {"aten::neg 8:u8", "S0 -> S0; P(sum) -> P(sum)"},
    {"aten::add.Tensor 8:i64 8:i64", "S0,S0 -> S0; P(sum),P(sum) -> P(sum)"},
    {"aten::add.Tensor 8 8:c64", "S0,S0 -> S0; P(sum),P(sum) -> P(sum)"},
    {"aten::clamp 8:i64", "S0 -> S0; P(max) -> P(max); P(min) -> P(min)"},
    {"aten::fmax 8 8", "S0,S0 -> S0"},
    {"aten::avg_pool2d 8x4x8x8:i64", "S0 -> S0; S1 -> S1"},
    {"aten::cat 0 8x6 dim=1", ""},
    {"aten::cat 0 0 dim=1", ""},
    {"aten::sum 8x6 dtype=4", "S0 -> P(sum); S1 -> P(sum)"},  // int64
    {"aten::histc 8 bins=4 min=1 max=1", ""},
    {"aten::histc 8 bins=4 min=0 max=1", "S0 -> P(sum)"},
    {"aten::histc 8:i64 bins=4 min=0.2 max=0.7", ""},
    {"aten::neg 8",
     "S0 -> S0; P(sum) -> P(sum); P(avg) -> P(avg); P(max) -> P(min); P(min) -> P(max)"},
    {"aten::sum.dim_IntList 8x6 dim={1}",
     "S0 -> S0; S1 -> P(sum); P(sum) -> P(sum); P(avg) -> P(avg)"},
    {"aten::sum.dim_IntList 8x6 dim={-2} keepdim=true",
     "S0 -> P(sum); S1 -> S1; P(sum) -> P(sum); P(avg) -> P(avg)"},
    {"aten::sum 8x6", "S0 -> P(sum); S1 -> P(sum); P(sum) -> P(sum); P(avg) -> P(avg)"},
    {"aten::mean.dim 8x6 dim={1}", "S0 -> S0; S1 -> P(avg); P(sum) -> P(sum); P(avg) -> P(avg)"},
    {"aten::amax 8x3 dim={}",
     "S0 -> P(max); P(max) -> P(max)"},  // 3 rows leave one of 4 ranks empty
    {"aten::_softmax 8x6 dim=-1", "S0 -> S0"},
    {"aten::cumsum 8x6 dim=0", "S1 -> S1; P(sum) -> P(sum); P(avg) -> P(avg)"},
    {"aten::argmax 8x6 dim=1", "S0 -> S0"},
    {"aten::argmax 8x6 dim=none", ""},
    {"aten::native_layer_norm 8x5x6 6 6 normalized_shape={6}",
     "S0,R,R -> S0,S0,S0; S1,R,R -> S1,S1,S1"},
    {"aten::native_layer_norm_backward 8x6 8x6 8x1 8x1 6 6 normalized_shape={6}",
     "S0,S0,S0,S0,R,R -> S0,P(sum),P(sum); P(sum),R,R,R,R,R -> P(sum),P(sum),P(sum); "
     "P(avg),R,R,R,R,R -> P(avg),P(avg),P(avg)"},
    {"aten::native_group_norm 8x8x3 8 8 N=8 C=8 HxW=3 group=4",
     "S0,R,R -> S0,S0,S0; S1,S0,S0 -> S1,S1,S1"},
    {"aten::native_group_norm 8x8x3 8 8 N=8 C=8 HxW=3 group=2", "S0,R,R -> S0,S0,S0"},
    {"aten::native_batch_norm 8x4x3 4 4 4 4 training=true", "S1,S0,S0,S0,S0 -> S1,S0,S0"},
    {"aten::native_batch_norm 8x4x3 4 4 4 4 training=false",
     "S0,R,R,R,R -> S0,R,R; S1,S0,S0,S0,S0 -> S1,R,R"},
    {"aten::_scaled_dot_product_flash_attention_for_cpu 4x8x16x2 4x8x16x2 4x8x16x2 -",
     "S0,S0,S0,R -> S0,S0; S1,S1,S1,R -> S1,S1; S2,R,R,R -> S2,S2"},
    {"aten::_scaled_dot_product_flash_attention_for_cpu 4x8x16x2 4x8x16x2 4x8x16x2 1x8x16x16 "
     "is_causal=true",
     "S0,S0,S0,R -> S0,S0; S1,S1,S1,S1 -> S1,S1"},
    {"aten::_scaled_dot_product_flash_attention 4x8x16x2 4x8x16x2 4x8x16x2",
     "S0,S0,S0 -> S0,S0,R,R,R,R,R,R,R; S1,S1,S1 -> S1,S1,R,R,R,R,R,R,R;"
     "S2,R,R -> S2,S2,R,R,R,R,R,R,R"},
    {"aten::_scaled_dot_product_flash_attention 4x8x16x2 4x8x16x2 4x8x16x2 dropout_p=0.1",
     "S0,S0,S0 -> S0,S0,R,R,R,R,R,R,R; S1,S1,S1 -> S1,S1,R,R,R,R,R,R,R"},
    // Two query heads a key head.
    {"aten::_scaled_dot_product_flash_attention 4x8x16x2 4x4x16x2 4x4x16x2 is_causal=true",
     "S0,S0,S0 -> S0,S0,R,R,R,R,R,R,R; S1,S1,S1 -> S1,S1,R,R,R,R,R,R,R"},
    // Fewer key heads than ranks: only whole groups may be sharded.
    {"aten::_scaled_dot_product_flash_attention 4x8x16x2 4x2x16x2 4x2x16x2 is_causal=true",
     "S0,S0,S0 -> S0,S0,R,R,R,R,R,R,R"},
    {"aten::_scaled_dot_product_flash_attention_backward 4x8x16x2 4x8x16x2 4x8x16x2 4x8x16x2 "
     "4x8x16x2 4x8x16 - - max_q=16 max_k=16 2:i64 scalar:i64 is_causal=true",
     "S0,S0,S0,S0,S0,S0,R,R,R,R -> S0,S0,S0; S1,S1,S1,S1,S1,S1,R,R,R,R -> S1,S1,S1;"
     "P(sum),R,R,R,R,R,R,R,R,R -> P(sum),P(sum),P(sum);"
     "P(avg),R,R,R,R,R,R,R,R,R -> P(avg),P(avg),P(avg)"},
    {"aten::_scaled_dot_product_flash_attention_backward 4x8x16x2 4x8x16x2 4x4x16x2 4x4x16x2 "
     "4x8x16x2 4x8x16 - - max_q=16 max_k=16 2:i64 scalar:i64",
     "S0,S0,S0,S0,S0,S0,R,R,R,R -> S0,S0,S0; S1,S1,S1,S1,S1,S1,R,R,R,R -> S1,S1,S1;"
     "S2,S2,R,R,S2,S2,R,R,R,R -> S2,P(sum),P(sum);"
     "P(sum),R,R,R,R,R,R,R,R,R -> P(sum),P(sum),P(sum);"
     "P(avg),R,R,R,R,R,R,R,R,R -> P(avg),P(avg),P(avg)"},
    {"aten::_flash_attention_forward 4x16x8x2 4x16x8x2 4x16x8x2 - - - - -",
     "S0,S0,S0,R,R,R,R,R -> S0,S0,R,R,R; S2,S2,S2,R,R,R,R,R -> S2,S1,R,R,R"},
    {"aten::_scaled_dot_product_cudnn_attention_backward 4x8x16x2 4x8x16x2 4x8x16x2 4x8x16x2 "
     "4x8x16x2 4x8x16x1 scalar:i64 scalar:i64 16x16 - -",
     "S0,S0,S0,S0,S0,S0,R,R,R,R,R -> S0,S0,S0; S1,S1,S1,S1,S1,S1,R,R,R,R,R -> S1,S1,S1;"
     "S2,S2,R,R,S2,S2,R,R,S0,R,R -> S2,P(sum),P(sum);"
     "P(sum),R,R,R,R,R,R,R,R,R,R -> P(sum),P(sum),P(sum);"
     "P(avg),R,R,R,R,R,R,R,R,R,R -> P(avg),P(avg),P(avg)"},
    {"aten::_thnn_fused_lstm_cell 8x16 8x16 8x4 16 16", "S0,S0,S0,R,R -> S0,S0,S0"},
    {"aten::_thnn_fused_lstm_cell_backward_impl 8x4 8x4 8x4 8x4 8x16",
     "S0,S0,S0,S0,S0 -> S0,S0,P(sum)"},
    {"aten::_thnn_fused_gru_cell 8x12 8x12 8x4 - -", "S0,S0,S0,R,R -> S0,S0"},
    {"aten::_thnn_fused_gru_cell_backward 8x4 8x20",
     "S0,S0 -> S0,S0,S0,P(sum),P(sum); P(sum),R -> P(sum),P(sum),P(sum),P(sum),P(sum);"
     "P(avg),R -> P(avg),P(avg),P(avg),P(avg),P(avg)"},
    {"aten::batch_norm_backward_reduce 8x4x3 8x4x3 4 4 4",
     "S0,S0,R,R,R -> P(sum),P(sum),P(sum),P(sum); S1,S1,S0,S0,S0 -> S0,S0,S0,S0;"
     "P(sum),R,R,R,R -> P(sum),P(sum),P(sum),P(sum);"
     "P(avg),R,R,R,R -> P(avg),P(avg),P(avg),P(avg)"},
    // Scales: one number, one a row and column, one a block; blocks are not split.
    {"aten::_scaled_mm 64x128:f8_e4m3fn 128x64:f8_e4m3fn scalar scalar - -",
     "S0,R,R,R,R,R -> S0; S1,S0,R,R,R,R -> P(sum); R,S1,R,R,R,R -> S1"},
    {"aten::_scaled_mm 64x128:f8_e4m3fn 128x64:f8_e4m3fn 64x1 1x64 64 -",
     "S0,R,S0,R,R,R -> S0; S1,S0,R,R,P(sum),R -> P(sum); R,S1,R,S1,S0,R -> S1"},
    {"aten::_scaled_mm 64x512:f8_e4m3fn 512x64:f8_e4m3fn 64x4 4x64 - -",
     "S0,R,S0,R,R,R -> S0; S1,S0,S1,S0,R,R -> P(sum); R,S1,R,S1,R,R -> S1"},
    {"aten::_scaled_mm 64x512:f8_e4m3fn 512x512:f8_e4m3fn 64x4 4x4 - -",
     "S0,R,S0,R,R,R -> S0; S1,S0,S1,S0,R,R -> P(sum); R,S1,R,S1,R,R -> S1"},
    {"aten::_scaled_mm 64x384:f8_e4m3fn 384x512:f8_e4m3fn 64x3 3x4 - -",
     "S0,R,S0,R,R,R -> S0; R,S1,R,S1,R,R -> S1"},
    // Strides of multiples of 16 bytes: 8 elements of bf16.
    {"aten::_grouped_mm 2x64x32:bf16 2x32x64:bf16 - -",
     "S1,R,R,R -> S1; S2,S1,R,R -> P(sum); R,S2,R,R -> S2; P(sum),R,R,R -> P(sum);"
     "P(avg),R,R,R -> P(avg); R,P(sum),R,R -> P(sum); R,P(avg),R,R -> P(avg)"},
    {"aten::_grouped_mm 8x64x32:bf16 8x32x24:bf16 - -",
     "S0,S0,R,R -> S0; S1,R,R,R -> S1; S2,S1,R,R -> P(sum); P(sum),R,R,R -> P(sum);"
     "P(avg),R,R,R -> P(avg); R,P(sum),R,R -> P(sum); R,P(avg),R,R -> P(avg)"},
    {"aten::_grouped_mm 64x32:bf16 2x32x64:bf16 2:i32 -",
     "S1,S1,R,R -> P(sum); R,S2,R,R -> S1; P(sum),R,R,R -> P(sum); P(avg),R,R,R -> P(avg);"
     "R,P(sum),R,R -> P(sum); R,P(avg),R,R -> P(avg)"},
    {"aten::_grouped_mm 2x64x32:bf16 32x64:bf16 2:i32 -",
     "S1,R,R,R -> S0; S2,S0,R,R -> P(sum); P(sum),R,R,R -> P(sum); P(avg),R,R,R -> P(avg);"
     "R,P(sum),R,R -> P(sum); R,P(avg),R,R -> P(avg)"},
    {"aten::_grouped_mm 64x32:bf16 32x64:bf16 2:i32 -",
     "S0,R,R,R -> S1; R,S1,R,R -> S2; P(sum),R,R,R -> P(sum); P(avg),R,R,R -> P(avg);"
     "R,P(sum),R,R -> P(sum); R,P(avg),R,R -> P(avg)"},
    {"aten::_scaled_grouped_mm 64x32:f8_e4m3fn 2x32x64:f8_e4m3fn 64 2x64 2:i32 - -",
     "R,S2,R,S1,R,R,R -> S1"},
    // Rows are kept for the backward in multiples of 32: the sequence is sharded in such only.
    {"aten::_scaled_dot_product_efficient_attention 4x8x16x2 4x8x16x2 4x8x16x2 4x8x16x16 "
     "compute_log_sumexp=true",
     "S0,S0,S0,S0 -> S0,S0,R,R; S1,S1,S1,S1 -> S1,S1,R,R"},
    {"aten::_scaled_dot_product_efficient_attention 4x8x128x2 4x8x16x2 4x8x16x2 4x8x128x16 "
     "compute_log_sumexp=true",
     "S0,S0,S0,S0 -> S0,S0,R,R; S1,S1,S1,S1 -> S1,S1,R,R; S2,R,R,S2 -> S2,S2,R,R"},
    {"aten::_scaled_dot_product_efficient_attention 4x8x64x2 4x8x16x2 4x8x16x2 - "
     "compute_log_sumexp=true",
     "S0,S0,S0,R -> S0,S0,R,R; S1,S1,S1,R -> S1,S1,R,R"},
    {"aten::_scaled_dot_product_efficient_attention 4x8x128x2 4x8x16x2 4x8x16x2 - "
     "compute_log_sumexp=true is_causal=true",
     "S0,S0,S0,R -> S0,S0,R,R; S1,S1,S1,R -> S1,S1,R,R"},
    {"aten::_scaled_dot_product_efficient_attention 4x8x18x2 4x8x16x2 4x8x16x2 - "
     "compute_log_sumexp=false",
     "S0,S0,S0,R -> S0,S0,R,R; S1,S1,S1,R -> S1,S1,R,R; S2,R,R,R -> S2,R,R,R"},
    {"aten::_scaled_dot_product_efficient_attention_backward 4x8x128x2 4x8x128x2 4x8x16x2 4x8x16x2 "
     "- 4x8x128x2 4x8x128 2:i64 2:i64",
     "S0,S0,S0,S0,R,S0,S0,R,R -> S0,S0,S0,S0; S1,S1,S1,S1,R,S1,S1,R,R -> S1,S1,S1,S1;"
     "S2,S2,R,R,R,S2,S2,R,R -> S2,P(sum),P(sum),S2;"
     "P(sum),R,R,R,R,R,R,R,R -> P(sum),P(sum),P(sum),P(sum);"
     "P(avg),R,R,R,R,R,R,R,R -> P(avg),P(avg),P(avg),P(avg)"},
    {"aten::_scaled_dot_product_efficient_attention_backward 4x8x1x2 4x8x1x2 4x8x16x2 4x8x16x2 "
     "- 4x8x1x2 4x8x32 2:i64 2:i64",
     "S0,S0,S0,S0,R,S0,S0,R,R -> S0,S0,S0,S0; S1,S1,S1,S1,R,S1,S1,R,R -> S1,S1,S1,S1;"
     "P(sum),R,R,R,R,R,R,R,R -> P(sum),P(sum),P(sum),P(sum);"
     "P(avg),R,R,R,R,R,R,R,R -> P(avg),P(avg),P(avg),P(avg)"},
    {"aten::_scaled_dot_product_cudnn_attention 4x8x16x2 4x8x16x2 4x8x16x2 4x1x16x16",
     "S0,S0,S0,S0 -> S0,S0,R,R,R,R,R,R,R; S1,S1,S1,R -> S1,S1,R,R,R,R,R,R,R;"
     "S2,R,R,S2 -> S2,S2,R,R,R,R,R,R,R"},
    {"aten::convolution 8x4x9x9 8x4x3x3 8 transposed=false groups=1",
     "S0,R,R -> S0; S1,S1,P(sum) -> P(sum); R,S0,S0 -> S1; P(sum),R,P(sum) -> P(sum); "
     "P(avg),R,P(avg) -> P(avg); "
     "R,P(sum),P(sum) -> P(sum); R,P(avg),P(avg) -> P(avg)"},
    {"aten::convolution 8x4x9x9 8x1x3x3 8 transposed=false groups=4",
     "S0,R,R -> S0; S1,S0,S0 -> S1"},
    {"aten::embedding 32x8 4x5:i64",
     "R,S0 -> S0; R,S1 -> S1; S1,R -> S2; P(sum),R -> P(sum); P(avg),R -> P(avg); P(max),R -> "
     "P(max); "
     "P(min),R -> P(min); P(product),R -> P(product)"},
    {"aten::mse_loss 8x6 8x6 reduction=1", "S0,S0 -> P(avg); S1,S1 -> P(avg)"},
    {"aten::mse_loss 8x6 8x6 reduction=2", "S0,S0 -> P(sum); S1,S1 -> P(sum)"},
    {"aten::mse_loss 8x6 8x6 reduction=0", "S0,S0 -> S0; S1,S1 -> S1"},
    {"aten::nll_loss_forward 8x6 8:i64 6 reduction=1", ""},
    {"aten::nll_loss_backward scalar@R 8x6 8:i64 - scalar@P(sum) reduction=2",
     "R,S0,S0,R,P(sum) -> S0; P(sum),R,R,R,P(sum) -> P(sum); P(avg),R,R,R,P(sum) -> P(avg)"},
    {"aten::nll_loss_backward scalar 8x6 8:i64 - scalar reduction=1",
     "R,S0,S0,R,R -> S0; P(sum),R,R,R,R -> P(sum); P(avg),R,R,R,R -> P(avg)"},
    {"aten::nll_loss_forward 8x6 8:i64 6 reduction=2", "S0,S0,R -> P(sum),P(sum)"},
    {"aten::_to_copy 8 dtype=4", "S0 -> S0"},
    {"aten::_to_copy 8 dtype=5",
     "S0 -> S0; P(sum) -> P(sum); P(avg) -> P(avg); P(max) -> P(max); P(min) -> P(min)"},
    {"aten::_fft_r2c 8x6 dim={1}", "S0 -> S0; P(sum) -> P(sum)"},
    {"aten::permute 8x6x4:c64 dims={2,0,1}", "S0 -> S1; S1 -> S2; S2 -> S0; P(sum) -> P(sum)"},
    {"aten::select.int 8x6:c64 dim=0 index=2", "S1 -> S0; P(sum) -> P(sum)"},
    {"aten::expand 8x1:c64 size={3,8,5}", "S0 -> S1; P(sum) -> P(sum)"},
    {"aten::cat [8x6:c64;8x6:c64] dim=1", "S0,S0 -> S0; P(sum),P(sum) -> P(sum); S1,S1 -> SS1(2)"},
    {"aten::cat [8x6:c64;4x6:c64] dim=0", "S1,S1 -> S1; P(sum),P(sum) -> P(sum)"},
    {"aten::stack [8:c64;8:c64] dim=0", "S0,S0 -> S1; P(sum),P(sum) -> P(sum)"},
    {"aten::gather 8x6:c64 8x2:i64 dim=1", "S0,S0 -> S0; R,S1 -> S1; P(sum),R -> P(sum)"},
    {"aten::index_select 8x6:c64 5:i64 dim=1", "S0,R -> S0; R,S0 -> S1; P(sum),R -> P(sum)"},
    {"aten::index_add 8x6:c64 5:i64 8x5:c64 dim=1",
     "S0,R,S0 -> S0; P(sum),S0,S1 -> P(sum); P(sum),R,P(sum) -> P(sum)"},
    {"aten::index.Tensor 8x6x4:c64 [-;5:i64]",
     "S0,R,R -> S0; S2,R,R -> S2; R,R,S0 -> S1; P(sum),R,R -> P(sum)"},
    {"aten::index_put 8x6:c64 [5:i64] 5x6:c64 accumulate=true",
     "S1,R,S1 -> S1; P(sum),S0,S0 -> P(sum); P(sum),R,P(sum) -> P(sum)"},
    {"aten::linalg_inv_ex 8x4x4", "S0 -> S0,S0"},
};

std::set<std::string> rows_in(std::string_view text) {
  std::set<std::string> out;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find(';', begin), text.size());
    std::string_view row = text.substr(begin, end - begin);
    while (row.starts_with(' ')) row.remove_prefix(1);
    if (!row.empty()) out.emplace(row);
    begin = end + 1;
  }
  return out;
}

TEST(RuleTables, GiveExactlyTheseRows) {
  for (const auto& golden : kGoldens) {
    const TextCall call("tp=4", golden.call);
    const rules::Rule* rule = rules::find_rule(call.op());
    ASSERT_NE(rule, nullptr) << call.op();
    std::set<std::string> have;
    for (const auto& row : rule->rows(call.get(), 0)) {
      if (row.kernel.empty()) have.insert(text_of(row));  // kernels: whatever the process enabled
    }
    const auto want = rows_in(golden.rows);
    for (const auto& row : want)
      EXPECT_TRUE(have.contains(row)) << golden.call << "  lacks  " << row;
    for (const auto& row : have) EXPECT_TRUE(want.contains(row)) << golden.call << "  has  " << row;
  }
}

TEST(RuleTables, StridedAndRaggedShardsPassWhereAllOperandsCanBeShardedAlike) {
  const auto has = [](const char* line, const char* row) {
    const TextCall call("tp=4", line);
    for (const auto& r : rules::find_rule(call.op())->rows(call.get(), 0)) {
      if (text_of(r) == row) return true;
    }
    return false;
  };
  EXPECT_TRUE(
      has("aten::add.Tensor 10x6@S0[4,3,2,1] 10x6", "S0[4,3,2,1],S0[4,3,2,1] -> S0[4,3,2,1]"));
  EXPECT_TRUE(has("aten::add.Tensor 8x6@SS0(2) 1x6", "SS0(2),R -> SS0(2)"));
  EXPECT_TRUE(has("aten::mm 8x6@SS1(2) 6x4", "SS1(2),SS0(2) -> P(sum)"));
  EXPECT_TRUE(has("aten::t 8x6@SS1(2)", "SS1(2) -> SS0(2)"));
  EXPECT_FALSE(has("aten::_softmax 8x6@SS1(2) dim=1", "SS1(2) -> SS1(2)"));
}

TEST(RuleTables, OfferAKernelsRowsOnceThereIsOne) {
  const auto rows = [](const char* line) {
    const TextCall call("tp=4", line);
    std::string out;
    for (const auto& r : rules::find_rule(call.op())->rows(call.get(), 0)) {
      if (!r.kernel.empty()) out += text_of(r) + " by " + std::string(r.kernel) + "; ";
    }
    return out;
  };
  EXPECT_EQ(rows("aten::linalg_vector_norm 8x6 ord=2 dim={1}"), "");
  rules::enable_kernel("norm");
  rules::enable_kernel("nll");
  rules::enable_kernel("mask", rules::KernelComm::none);
  EXPECT_EQ(rows("aten::linalg_vector_norm 8x6 ord=2 dim={1}"), "S1 -> R by norm; ");
  EXPECT_EQ(rows("aten::linalg_vector_norm 8x6 ord=2 dim=none"),
            "S0 -> R by norm; S1 -> R by norm; ");
  EXPECT_EQ(rows("aten::linalg_vector_norm 8x6 ord=1 dim=none"), "");
  EXPECT_EQ(rows("aten::nll_loss_forward 8x6 8:i64 6 reduction=1"),
            "S0,S0,R -> R,R by nll; S1,R,R -> R,R by nll; ");
  EXPECT_EQ(rows("aten::nll_loss_forward 8x6 8:i64 6 reduction=2"), "S1,R,R -> R,R by nll; ");
  EXPECT_EQ(rows("aten::nll_loss_forward 8x6@SS1(2) 8:i64 6 reduction=2"),
            "S1,R,R -> R,R by nll; SS1(2),R,R -> R,R by nll; ");
  EXPECT_EQ(rows("aten::nll_loss_backward scalar 8x6 8:i64 - scalar reduction=1"), "");
  rules::enable_kernel("nll_backward", rules::KernelComm::none);
  EXPECT_EQ(rows("aten::nll_loss_backward scalar 8x6 8:i64 - scalar reduction=1"),
            "R,S1,R,R,R -> S1 by nll_backward; ");
  EXPECT_EQ(rows("aten::embedding 32x8 4x5:i64"), "S0,R -> P(sum) by mask; ");
  EXPECT_EQ(rows("aten::embedding_dense_backward 4x5x8 4x5:i64 num_weights=32"),
            "R,R -> S0 by mask; ");
}

TEST(RuleTables, KeepQueryRowsShardedOnlyWithTheFlag) {
  const auto has_rows = [](const char* op, const char* more) {
    const TextCall call("tp=4", std::string(op) + " 4x8x16x2 4x8x16x2 4x8x16x2" + more);
    for (const auto& r : rules::find_rule(call.op())->rows(call.get(), 0)) {
      if (r.operands[0] == Shard(2)) return true;
    }
    return false;
  };
  const char* cpu = "aten::_scaled_dot_product_flash_attention_for_cpu";
  const char* cuda = "aten::_scaled_dot_product_flash_attention";
  EXPECT_TRUE(rules::flag_set("sequence"));
  EXPECT_TRUE(has_rows(cpu, " -"));
  EXPECT_TRUE(has_rows(cuda, ""));
  EXPECT_FALSE(has_rows(cpu, " - is_causal=true"));
  EXPECT_FALSE(has_rows(cuda, " is_causal=true"));
  const uint64_t before = rules::generation();
  rules::set_flag("sequence", false);
  EXPECT_NE(rules::generation(), before);
  EXPECT_FALSE(has_rows(cpu, " -"));
  EXPECT_FALSE(has_rows(cuda, ""));
  rules::set_flag("sequence", true);
  EXPECT_TRUE(has_rows(cpu, " -"));
  EXPECT_THROW(rules::set_flag("sequense", true), InvalidArgument);
}

TEST(RuleTables, AxesTogetherKeepTheAlignment) {
  // 32 columns of bf16 over 2 or 4 ranks are 16 or 8; over 8 they are 4, of 8 bytes.
  const auto chosen = [](const char* mesh, const char* line) {
    const TextCall call(mesh, line);
    const auto choice = rules::choose(*rules::find_rule(call.op()), call.get());
    return placements_text(choice.results[0]);
  };
  EXPECT_EQ(chosen("a=2,b=2", "aten::_grouped_mm 2x64x64:bf16 2x64x32:bf16@S2,S2 - -"), "S2,S2");
  EXPECT_EQ(chosen("a=4,b=2", "aten::_grouped_mm 2x64x64:bf16 2x64x32:bf16@S2,S2 - -"), "S2,R");
}

TEST(RuleTables, KnowTheShapesOfResults) {
  const auto shapes = [](const char* line) {
    const TextCall call("tp=4", line);
    std::string out;
    for (const auto& meta : rules::find_rule(call.op())->infer(call.get()))
      out += shape_text(meta.shape) + " ";
    return out;
  };
  EXPECT_EQ(shapes("aten::mm 8x6 6x4"), "8x4 ");
  EXPECT_EQ(shapes("aten::add.Tensor 8x1 1x6"), "8x6 ");
  EXPECT_EQ(shapes("aten::sum.dim_IntList 8x6x2 dim={1} keepdim=true"), "8x1x2 ");
  EXPECT_EQ(shapes("aten::sum 8x6x2"), "scalar ");
  EXPECT_EQ(shapes("aten::native_layer_norm 8x5x6 5x6 5x6 normalized_shape={5,6}"),
            "8x5x6 8x1x1 8x1x1 ");
  EXPECT_EQ(shapes("aten::topk 8x6 k=2 dim=1"), "8x-1 8x-1 ");
  EXPECT_EQ(shapes("aten::cat [8x6;4x6] dim=0"), "12x6 ");
  EXPECT_EQ(shapes("aten::view 8x6 size={-1}"), "48 ");
  EXPECT_EQ(shapes("aten::embedding 32x8 4x5:i64"), "4x5x8 ");
}

}  // namespace golden_test
}  // namespace tessera::test
