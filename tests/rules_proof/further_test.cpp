#include "tests/rules_proof/prove_all.h"

/// Ops that libtorch's own functions and modules are made of, and forms that return new tensors.
namespace tessera::test {
namespace {

#define QUANTS " quant_min=-8 quant_max=7"
#define ADAM " lr=0.1 beta1=0.9 beta2=0.99 weight_decay=0.1 eps=1e-8 amsgrad=true maximize=false"
constexpr const char* kLines[] = {
    "aten::_stack [5x3;5x3] dim=1",
    "aten::_reshape_copy 6x4 size={24}",
    "aten::rot90 5x3x2 k=1 dims={0,1}",
    "aten::rot90 5x3x2 k=2 dims={0,-1}",
    "aten::diagonal_scatter 5x4x3 3x4 offset=0 dim1=0 dim2=1",
    "aten::diagonal_scatter 5x4x3 4x2 offset=1 dim1=0 dim2=2",
    "aten::_trilinear 5x3 2x3x4 5x4 expand1={1,3} expand2={0} expand3={1,2} sumdim={2,3}",
    "aten::narrow_copy 7x3 dim=0 start=2 length=4",
    "aten::narrow_copy 7x3 dim=0 start=-5 length=3",
    "aten::trace 5x4",
    "aten::histogram.bins_tensor 5x3 4:inc",
    "aten::histogram.bins_tensor 5x3 4:inc weight=5x3:pos",
    "aten::histogram.bins_tensor 5x3 4:inc density=true",
    "aten::histogram.bin_ct 5x3 bins=4 range={-2,2}",
    "aten::histogram.bin_ct 5x3 bins=4",
    "aten::block_diag [3x4;2x5]",
    "aten::block_diag [3;2x5;scalar]",
    "aten::_masked_softmax 5x3x2x4 5x3x2x4:bool dim=3 mask_type=2",
    "aten::_masked_softmax_backward 5x3x2x4 5x3x2x4:prob 5x3x2x4:bool dim=3",
    "aten::_cholesky_solve_helper 3x4x2 3x4x4:tri upper=false",
    "aten::_dirichlet_grad 5x3:prob 5x3:pos 5x3:pos",
    "aten::fake_quantize_per_tensor_affine_cachemask 5x3:f32 scale=0.1 zero_point=0" QUANTS,
    "aten::_fake_quantize_learnable_per_tensor_affine 5x3:f32 1:pos32 1:pos32" QUANTS,
    "aten::fake_quantize_per_channel_affine_cachemask 5x3:f32 3:pos32 3:i32<3 axis=1" QUANTS,
    "aten::_fake_quantize_learnable_per_channel_affine 5x3:f32 5:pos32 5:pos32 axis=0" QUANTS,
    "aten::_embedding_bag_dense_backward 3x4 6:i64<7 6:i64<3 3:i64<4 3:i64<7 num_weights=7 "
    "scale_grad_by_freq=false mode=0 padding_idx=-1",
    "aten::_embedding_bag_per_sample_weights_backward 3x4 7x4 6:i64<7 3:i64<2 6:i64<3 mode=0",
    "aten::_native_batch_norm_legit_functional 5x4x3 4 4 4 4:pos training=true momentum=0.1 "
    "eps=1e-5",
    "aten::_native_batch_norm_legit_functional 5x4x3 4 4 4 4:pos training=false momentum=0.1 "
    "eps=1e-5",
    "aten::_batch_norm_with_update_functional 5x4x3 4 4 4 4:pos momentum=0.1 eps=1e-5",
    "aten::batch_norm_update_stats 5x4x3 4 4:pos momentum=0.1",
    "aten::rrelu_with_noise_functional 5x3 5x3 training=false",
    "aten::slow_conv3d_forward 3x5x4x4x3 2x5x2x2x2 kernel_size={2,2,2} bias=2 stride={1,1,1} "
    "padding={0,0,0}",
    "aten::slow_conv_dilated2d 3x5x6x4 7x5x3x2 kernel_size={3,2} bias=7",
    "aten::slow_conv_dilated3d 3x5x4x4x4 2x5x2x2x2 kernel_size={2,2,2} bias=2",
    "aten::slow_conv_transpose2d 3x5x4x4 5x7x3x2 kernel_size={3,2} bias=7",
    "aten::slow_conv_transpose3d 3x5x3x3x3 5x2x2x2x2 kernel_size={2,2,2} bias=2",
    "aten::_slow_conv2d_forward 3x5x6x4 7x5x3x2 kernel_size={3,2} bias=7 stride={1,1} "
    "padding={0,0}",
    "aten::_slow_conv2d_backward.output_mask 3x7x4x3 3x5x6x4 7x5x3x2 kernel_size={3,2} "
    "stride={1,1} padding={0,0} output_mask={true,true,true}",
    "aten::_grid_sampler_2d_cpu_fallback_backward 3x5x3x2:f32 3x5x4x4:f32 3x3x2x2:f32 "
    "interpolation_mode=0 "
    "padding_mode=0 align_corners=false",
    "aten::_fused_adam [5x3;4] [5x3;4] [5x3;4] [5x3:pos;4:pos] [5x3:pos;4:pos] "
    "[scalar:pos32;scalar:pos32]" ADAM,
    "aten::_fused_sgd [5x3;4] [5x3;4] [5x3;4] weight_decay=0.1 momentum=0.9 lr=0.1 dampening=0.0 "
    "nesterov=false maximize=false is_first_step=false",
    "aten::new_zeros 5x3 size={5,7}",
    "aten::new_zeros 5x3 size={7,3}",
    "aten::nll_loss_backward scalar 5x3 5:i64<3 3:pos reduction=2 ignore_index=1 "
    "total_weight=scalar:pos",
};

TEST(RulesOfFurtherOps, EveryRowIsRight) { EXPECT_GT(prove_lines(kLines).rows, 500); }

}  // namespace
}  // namespace tessera::test
