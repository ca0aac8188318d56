#include "tests/rules_proof/prove_all.h"

namespace tessera::test {
namespace {

#define CONV "stride={1,1} padding={1,0} dilation={1,1} output_padding={0,0}"
constexpr const char* kConvolutions[] = {
    "aten::convolution 3x5x6x4 7x5x3x2 7 " CONV " transposed=false groups=1",
    "aten::convolution 3x4x6x4 4x2x3x2 4 " CONV " transposed=false groups=2",
    "aten::convolution 3x4x6x4 4x1x3x2 - " CONV " transposed=false groups=4",
    "aten::convolution 3x5x6x4 5x7x3x2 7 " CONV " transposed=true groups=1",
    "aten::convolution 3x4x6x4 4x3x3x2 6 " CONV " transposed=true groups=2",
    "aten::convolution 3x4x6 7x4x3 7 stride={2} padding={1} dilation={1} transposed=false "
    "output_padding={0} groups=1",
    "aten::convolution 2x4x4x3x3 3x4x2x2x2 3 stride={1,1,1} padding={0,0,0} dilation={1,1,1} "
    "transposed=false output_padding={0,0,0} groups=1",
    "aten::convolution_backward 3x7x6x3 3x5x6x4 7x5x3x2 bias_sizes={7} " CONV
    " transposed=false groups=1 output_mask={true,true,true}",
    "aten::convolution_backward 3x4x6x3 3x4x6x4 4x2x3x2 bias_sizes={4} " CONV
    " transposed=false groups=2 output_mask={true,true,true}",
    "aten::convolution_backward 3x7x6x5 3x5x6x4 5x7x3x2 bias_sizes={7} " CONV
    " transposed=true groups=1 output_mask={true,true,true}",
};

constexpr const char* kPools[] = {
    "aten::avg_pool2d 3x5x6x4 kernel_size={2,2}",
    "aten::avg_pool2d 5x6x4 kernel_size={2,2}",
    "aten::avg_pool2d_backward 3x5x3x2 3x5x6x4 kernel_size={2,2} stride={2,2} padding={0,0} "
    "ceil_mode=false count_include_pad=true divisor_override=-",
    "aten::avg_pool3d 3x5x4x4x4 kernel_size={2,2,2}",
    "aten::_adaptive_avg_pool2d 3x5x6x4 output_size={2,2}",
    "aten::_adaptive_avg_pool2d_backward 3x5x2x2 3x5x6x4",
    "aten::_adaptive_avg_pool3d 3x5x4x4x4 output_size={2,2,2}",
    "aten::adaptive_max_pool2d 3x5x6x4 output_size={2,2}",
    "aten::max_pool2d_with_indices 3x5x6x4 kernel_size={2,2}",
    "aten::max_pool2d_with_indices_backward 3x5x3x2 3x5x6x4 kernel_size={2,2} stride={2,2} "
    "padding={0,0} dilation={1,1} ceil_mode=false indices=3x5x3x2:i64<24",
    "aten::max_pool3d_with_indices 3x5x4x4x4 kernel_size={2,2,2}",
    "aten::fractional_max_pool2d 3x5x6x6 kernel_size={2,2} output_size={3,3} "
    "random_samples=3x5x2:prob",
    "aten::max_unpool2d 3x5x3x2 3x5x3x2:i64<24 output_size={6,4}",
    "aten::upsample_nearest1d 3x5x4 output_size={8}",
    "aten::upsample_nearest2d 3x5x4x4 output_size={8,6}",
    "aten::upsample_bilinear2d 3x5x4x4 output_size={8,6} align_corners=false",
    "aten::upsample_bicubic2d 3x5x4x4 output_size={8,6} align_corners=true",
    "aten::_upsample_bilinear2d_aa 3x5x4x4 output_size={8,6} align_corners=false",
    "aten::upsample_trilinear3d 3x5x4x4x2 output_size={8,6,4} align_corners=false",
    "aten::upsample_linear1d_backward 3x5x8 output_size={8} input_size={3,5,4} align_corners=false",
    "aten::upsample_nearest2d_backward 3x5x8x6 output_size={8,6} input_size={3,5,4,4}",
    "aten::upsample_bilinear2d_backward 3x5x8x6 output_size={8,6} input_size={3,5,4,4} "
    "align_corners=false",
    "aten::grid_sampler_2d 3x5x4x4 3x6x2x2 interpolation_mode=0 padding_mode=0 align_corners=false",
    "aten::grid_sampler_3d 3x2x4x4x3 3x3x2x2x3 interpolation_mode=0 padding_mode=0 "
    "align_corners=false",
    "aten::grid_sampler_2d_backward 3x5x6x2 3x5x4x4 3x6x2x2 interpolation_mode=0 padding_mode=0 "
    "align_corners=false output_mask={true,true}",
    "aten::affine_grid_generator 3x2x3 size={3,1,4,5} align_corners=false",
    "aten::im2col 3x2x5x5 kernel_size={2,2} dilation={1,1} padding={0,0} stride={1,1}",
    "aten::col2im 3x8x16 output_size={5,5} kernel_size={2,2} dilation={1,1} padding={0,0} "
    "stride={1,1}",
    "aten::reflection_pad1d 3x5x4 padding={1,1}",
    "aten::reflection_pad2d 3x5x4x4 padding={1,1,0,1}",
    "aten::replication_pad3d 3x2x4x4x3 padding={1,1,0,1,1,1}",
    "aten::reflection_pad2d_backward 3x5x5x6 3x5x4x4 padding={1,1,0,1}",
    "aten::pixel_shuffle 3x8x2x3 upscale_factor=2",
    "aten::pixel_unshuffle 3x2x4x6 downscale_factor=2",
    "aten::channel_shuffle 3x4x2x3 groups=2",
    "aten::conv_tbc 6x3x4 2x4x5 5",
};

constexpr const char* kLinalg[] = {
    "aten::linalg_cholesky_ex 5x3x3:spd",
    "aten::cholesky 5x3x3:spd",
    "aten::cholesky_inverse 5x3x3:tri",
    "aten::cholesky_solve 5x3x2 5x3x3:tri",
    "aten::linalg_inv_ex 5x3x3",
    "aten::_linalg_det 5x3x3",
    "aten::_linalg_slogdet 2x5x3x3",
    "aten::_linalg_eigh 5x3x3:spd",
    "aten::linalg_eig 5x3x3",
    "aten::_linalg_svd 5x3x2",
    "aten::_linalg_svd 5x3x2 compute_uv=false",
    "aten::linalg_qr 5x3x2",
    "aten::geqrf 5x3x2",
    "aten::linalg_householder_product 5x3x2 5x2",
    "aten::ormqr 5x3x3 5x3 5x3x2",
    "aten::linalg_lu_factor_ex 5x3x3",
    "aten::linalg_lu 5x3x2",
    "aten::lu_unpack 5x3x3 5x3:piv",
    "aten::linalg_lu_solve 5x3x3:spd 5x3:piv 5x3x2",
    "aten::linalg_ldl_factor_ex 5x3x3:spd",
    "aten::linalg_ldl_solve 5x3x3:spd 5x3:piv 5x3x2",
    "aten::linalg_matrix_exp 5x3x3",
    "aten::linalg_solve_triangular 5x3x3:tri 5x3x2 upper=false",
    "aten::triangular_solve 5x3x2 5x3x3:tri upper=false",
    "aten::_linalg_solve_ex 5x3x3 5x3x2",
    "aten::_linalg_solve_ex 3x3x3 3x3",
    "aten::linalg_pinv.atol_rtol_tensor 5x3x2",
};

TEST(RulesOfConvolutions, EveryRowIsRight) { EXPECT_GT(prove_lines(kConvolutions).rows, 150); }
TEST(RulesOfPools, EveryRowIsRight) { EXPECT_GT(prove_lines(kPools).rows, 500); }
TEST(RulesOfLinearAlgebra, EveryRowIsRight) { EXPECT_GT(prove_lines(kLinalg).rows, 150); }

}  // namespace
}  // namespace tessera::test
