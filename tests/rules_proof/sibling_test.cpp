#include "tests/rules_proof/prove_all.h"

/// The siblings of ops proven elsewhere: the same line, another kernel.
namespace tessera::test {
namespace {

#define CONV "stride={1,1} padding={1,0} dilation={1,1} output_padding={0,0}"
#define FLAGS " benchmark=false deterministic=false cudnn_enabled=false allow_tf32=false"
constexpr const char* kLines[] = {
    "aten::_int_mm 32x16:i8 16x8:i8",
    "aten::_euclidean_dist 2x5x3 2x4x3",
    "aten::_convolution 3x5x6x4 7x5x3x2 7 " CONV " transposed=false groups=1" FLAGS,
    "aten::_native_batch_norm_legit 5x4x3 4 4 4 4:pos training=true momentum=0.1 eps=1e-5",
    "aten::_batch_norm_with_update 5x4x3 4 4 4 4:pos momentum=0.1 eps=1e-5",
    "aten::_batch_norm_no_update 5x4x3 4 4 4 4:pos momentum=0.1 eps=1e-5",
    "aten::_weight_norm_interface_backward 5x3x2 5x3x2 5x1x1 5x1x1:pos dim=0",
    "aten::_fused_rms_norm 5x3x4 4 normalized_shape={4} eps=1e-5",
    "aten::_embedding_bag_forward_only 7x4 6:i64<7 3:i64<2 mode=1",
    "aten::_unsafe_index_put 5x4x3 [6:i64<5] 6x4x3 accumulate=true",
    "aten::_index_put_impl 5x4x3 [6:i64<5] 6x4x3 accumulate=true",
    "aten::_linalg_eigvals 5x3x3",
    "aten::_logcumsumexp 5x3 dim=0",
    "aten::_aminmax.dim 5x3 dim=0",
    "aten::all.dims 5x3x2:bool dim={0,1}",
    "aten::min.dim 5x3 dim=1",
    "aten::nanmedian 5x3",
    "aten::norm.ScalarOpt_dim_dtype 5x3 p=1 dim={0} keepdim=true dtype=7",
    "aten::norm.ScalarOpt_dtype 5x3 p=1 dtype=7",
    "aten::copy 5x3 3",
    "aten::triu 2x5x3",
    "aten::isin.Tensor_Scalar 5x3:i64 test_element=2",
    "aten::multilabel_margin_loss_backward scalar 5x3 5x3:i64<3 reduction=1 is_target=5x3:prob",
    "aten::new_ones 5x3 size={5,3}",
    "aten::unsafe_split_with_sizes 7x3 split_sizes={1,4,2} dim=0",
    "aten::_adaptive_avg_pool3d_backward 3x5x2x2x2 3x5x4x4x4",
    "aten::avg_pool3d_backward 3x5x2x2x2 3x5x4x4x4 kernel_size={2,2,2} stride={2,2,2} "
    "padding={0,0,0} ceil_mode=false "
    "count_include_pad=true divisor_override=-",
    "aten::adaptive_max_pool2d_backward 3x5x2x2 3x5x6x4 3x5x2x2:i64<24",
    "aten::adaptive_max_pool3d 3x5x4x4x4 output_size={2,2,2}",
    "aten::adaptive_max_pool3d_backward 3x5x2x2x2 3x5x4x4x4 3x5x2x2x2:i64<64",
    "aten::max_pool3d_with_indices_backward 3x5x2x2x2 3x5x4x4x4 kernel_size={2,2,2} stride={2,2,2} "
    "padding={0,0,0} "
    "dilation={1,1,1} ceil_mode=false indices=3x5x2x2x2:i64<64",
    "aten::max_unpool3d 3x5x2x2x2 3x5x2x2x2:i64<64 output_size={4,4,4} stride={2,2,2} "
    "padding={0,0,0}",
    "aten::fractional_max_pool2d_backward 3x5x3x3 3x5x6x6 kernel_size={2,2} output_size={3,3} "
    "indices=3x5x3x3:i64<36",
    "aten::fractional_max_pool3d 3x2x4x4x4 kernel_size={2,2,2} output_size={2,2,2} "
    "random_samples=3x2x3:prob",
    "aten::fractional_max_pool3d_backward 3x2x2x2x2 3x2x4x4x4 kernel_size={2,2,2} "
    "output_size={2,2,2} "
    "indices=3x2x2x2x2:i64<64",
    "aten::grid_sampler_3d_backward 3x2x3x2x2 3x2x4x4x3 3x3x2x2x3 interpolation_mode=0 "
    "padding_mode=0 "
    "align_corners=false output_mask={true,true}",
    "aten::_upsample_bicubic2d_aa 3x5x4x4 output_size={8,6} align_corners=false",
    "aten::_upsample_bicubic2d_aa_backward 3x5x8x6 output_size={8,6} input_size={3,5,4,4} "
    "align_corners=false",
    "aten::_upsample_bilinear2d_aa_backward 3x5x8x6 output_size={8,6} input_size={3,5,4,4} "
    "align_corners=false",
    "aten::_upsample_lanczos2d_aa 3x5x4x4 output_size={8,6} align_corners=false",
    "aten::_upsample_lanczos2d_aa_backward 3x5x8x6 output_size={8,6} input_size={3,5,4,4} "
    "align_corners=false",
    "aten::_upsample_nearest_exact1d 3x5x4 output_size={8}",
    "aten::_upsample_nearest_exact1d_backward 3x5x8 output_size={8} input_size={3,5,4}",
    "aten::_upsample_nearest_exact2d 3x5x4x4 output_size={8,6}",
    "aten::_upsample_nearest_exact2d_backward 3x5x8x6 output_size={8,6} input_size={3,5,4,4}",
    "aten::_upsample_nearest_exact3d 3x5x4x4x2 output_size={8,6,4}",
    "aten::_upsample_nearest_exact3d_backward 3x5x8x6x4 output_size={8,6,4} input_size={3,5,4,4,2}",
    "aten::upsample_linear1d 3x5x4 output_size={8} align_corners=false",
    "aten::upsample_nearest1d_backward 3x5x8 output_size={8} input_size={3,5,4}",
    "aten::upsample_bicubic2d_backward 3x5x8x6 output_size={8,6} input_size={3,5,4,4} "
    "align_corners=false",
    "aten::upsample_nearest3d 3x5x4x4x2 output_size={8,6,4}",
    "aten::upsample_nearest3d_backward 3x5x8x6x4 output_size={8,6,4} input_size={3,5,4,4,2}",
    "aten::upsample_trilinear3d_backward 3x5x8x6x4 output_size={8,6,4} input_size={3,5,4,4,2} "
    "align_corners=false",
    "aten::reflection_pad1d_backward 3x5x6 3x5x4 padding={1,1}",
    "aten::reflection_pad3d 3x2x4x4x3 padding={1,1,0,1,1,1}",
    "aten::reflection_pad3d_backward 3x2x6x5x5 3x2x4x4x3 padding={1,1,0,1,1,1}",
    "aten::replication_pad1d 3x5x4 padding={1,1}",
    "aten::replication_pad1d_backward 3x5x6 3x5x4 padding={1,1}",
    "aten::replication_pad2d 3x5x4x4 padding={1,1,0,1}",
    "aten::replication_pad2d_backward 3x5x5x6 3x5x4x4 padding={1,1,0,1}",
    "aten::replication_pad3d_backward 3x2x6x5x5 3x2x4x4x3 padding={1,1,0,1,1,1}",
};

TEST(RulesOfSiblings, EveryRowIsRight) { EXPECT_GT(prove_lines(kLines).rows, 800); }

}  // namespace
}  // namespace tessera::test
