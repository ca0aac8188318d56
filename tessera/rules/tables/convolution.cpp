#include "tessera/rules/tables/tables.h"

/// Convolution, pooling, resampling: batch and channels. Spatial dims are sharded by kernels that
/// exchange halos. Averages and resampled images of integers are rounded (blend).
namespace tessera::rules {
namespace {

constexpr TableLine kConvolutionTable[] = {
    {"convolution _convolution convolution_overrideable",
     "niS.., oiK.., +o? -> noT.. ; if transposed=false ; if groups=1 ; nonempty io ; linear 0 ; "
     "linear 1 ; kernel convolution |"
     "niS.., ioK.., +o? -> noT.. ; if transposed ; if groups=1 ; nonempty io ; linear 0 ; linear 1 "
     "; kernel convolution |"
     "n(gI)S.., (gO)JK.., (gO)? -> n(gO)T.. ; size g $groups ; local $groups g ; if "
     "transposed=false ; kernel convolution |"
     "n(gI)S.., (gI)JK.., (gO)? -> n(gO)T.. ; size g $groups ; local $groups g ;"
     "kernel convolution"},
    {"convolution_backward convolution_backward_overrideable",
     "noT.., niS.., oiK.. -> niS.., oiK.., o!i ; if transposed=false ; if groups=1 ;"
     "nonempty io ; local $bias_sizes 0.1 ; linear 0 ; kernel convolution_backward |"
     "noT.., niS.., ioK.. -> niS.., ioK.., o!i ; if transposed ; if groups=1 ;"
     "nonempty io ; local $bias_sizes 0.1 ; linear 0 ; kernel convolution_backward |"
     "n(gO)T.., n(gI)S.., (gO)JK.. -> n(gI)S.., (gO)JK.., (gO) ; size g $groups ;"
     "local $groups g ; local $bias_sizes 0.1 ; if transposed=false ; linear 0 ;"
     "kernel convolution_backward |"
     "n(gO)T.., n(gI)S.., (gI)JK.. -> n(gI)S.., (gI)JK.., (gO) ; size g $groups ;"
     "local $groups g ; local $bias_sizes 0.1 ; linear 0 ; kernel convolution_backward"},
    // Kernels that convolution selects; the depthwise ones have one or more filters per channel.
    {"slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d _slow_conv2d_forward",
     "niS.., oiK.., +o? -> noT.. ; nonempty ; linear 0 ; linear 1"},
    {"slow_conv_transpose2d slow_conv_transpose3d",
     "niS.., ioK.., +o? -> noT.. ; nonempty ; linear 0 ; linear 1"},
    {"_slow_conv2d_backward.output_mask",
     "noT.., niS.., oiK.. -> niS.., oiK.., o!i ; nonempty ; linear 0"},
    {"_conv_depthwise2d conv_depthwise3d", "ncS.., (cM)1K.., (cM)? -> n(cM)T.. ; nonempty"},
    {"conv_tbc", "TnI, KIO, O -> UnO"},

    {"avg_pool2d", "*HW -> *IJ ; blend 0 ; nonempty ; kernel pooling"},
    {"avg_pool3d", "*HWD -> *IJK ; blend 0 ; nonempty ; kernel pooling"},
    {"avg_pool2d_backward", "*IJ, *HW -> *HW ; linear 0 ; nonempty ; kernel pooling"},
    {"avg_pool3d_backward", "*IJK, *HWD -> *HWD ; linear 0 ; nonempty ; kernel pooling"},
    {"max_pool2d_with_indices", "*HW -> *IJ, *IJ ; nonempty ; kernel pooling"},
    {"max_pool3d_with_indices", "*HWD -> *IJK, *IJK ; nonempty ; kernel pooling"},
    {"max_pool2d_with_indices_backward",
     "*IJ, *HW, *IJ -> *HW ; linear 0 ; nonempty ; kernel pooling"},
    {"max_pool3d_with_indices_backward",
     "*IJK, *HWD, *IJK -> *HWD ; linear 0 ; nonempty ; kernel pooling"},
    {"_adaptive_avg_pool2d adaptive_avg_pool2d", "*HW -> *IJ ; blend 0 ; nonempty"},
    {"_adaptive_avg_pool3d adaptive_avg_pool3d", "*HWD -> *IJK ; blend 0 ; nonempty"},
    {"_adaptive_avg_pool2d_backward", "*IJ, *HW -> *HW ; linear 0 ; nonempty"},
    {"_adaptive_avg_pool3d_backward", "*IJK, *HWD -> *HWD ; linear 0 ; nonempty"},
    {"adaptive_max_pool2d", "*HW -> *IJ, *IJ ; nonempty"},
    {"adaptive_max_pool3d", "*HWD -> *IJK, *IJK ; nonempty"},
    {"adaptive_max_pool2d_backward", "*IJ, *HW, *IJ -> *HW ; linear 0 ; nonempty"},
    {"adaptive_max_pool3d_backward", "*IJK, *HWD, *IJK -> *HWD ; linear 0 ; nonempty"},
    {"fractional_max_pool2d", "ncHW, ncR -> ncIJ, ncIJ ; nonempty"},
    {"fractional_max_pool3d", "ncHWD, ncR -> ncIJK, ncIJK ; nonempty"},
    {"fractional_max_pool2d_backward", "ncIJ, ncHW, ncIJ -> ncHW ; linear 0 ; nonempty"},
    {"fractional_max_pool3d_backward", "ncIJK, ncHWD, ncIJK -> ncHWD ; linear 0 ; nonempty"},
    {"max_unpool2d", "*HW, *HW -> *IJ ; linear 0 ; nonempty"},
    {"max_unpool3d", "*HWD, *HWD -> *IJK ; linear 0 ; nonempty"},

    {"upsample_linear1d upsample_nearest1d _upsample_nearest_exact1d",
     "ncH -> ncI ; blend 0 ; nonempty"},
    {"upsample_bilinear2d upsample_bicubic2d upsample_nearest2d _upsample_nearest_exact2d "
     "_upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_lanczos2d_aa",
     "ncHW -> ncIJ ; blend 0 ; nonempty"},
    {"upsample_trilinear3d upsample_nearest3d _upsample_nearest_exact3d",
     "ncHWD -> ncIJK ; blend 0 ; nonempty"},
    {"upsample_linear1d_backward upsample_nearest1d_backward _upsample_nearest_exact1d_backward",
     "ncI -> ncH ; local $input_size result 0 ; linear 0 ; nonempty"},
    {"upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_nearest2d_backward "
     "_upsample_nearest_exact2d_backward _upsample_bilinear2d_aa_backward "
     "_upsample_bicubic2d_aa_backward _upsample_lanczos2d_aa_backward",
     "ncIJ -> ncHW ; local $input_size result 0 ; linear 0 ; nonempty"},
    {"upsample_trilinear3d_backward upsample_nearest3d_backward _upsample_nearest_exact3d_backward",
     "ncIJK -> ncHWD ; local $input_size result 0 ; linear 0 ; nonempty"},
    {"grid_sampler_2d _grid_sampler_2d_cpu_fallback", "ncHW, nijT -> ncij ; linear 0 ; nonempty"},
    {"grid_sampler_3d", "ncHWD, nijkT -> ncijk ; linear 0 ; nonempty"},
    {"grid_sampler_2d_backward _grid_sampler_2d_cpu_fallback_backward",
     "ncij, ncHW, nijT -> ncHW, nijT ; linear 0 ; nonempty"},
    {"grid_sampler_3d_backward", "ncijk, ncHWD, nijkT -> ncHWD, nijkT ; linear 0 ; nonempty"},
    {"affine_grid_generator", "nRC -> nHWT ; local $size result 0 ; nonempty"},
    {"im2col", "nCHW -> nAB ; linear 0 ; nonempty"},
    {"col2im", "nAB -> nCHW ; linear 0 ; nonempty"},

    {"reflection_pad1d replication_pad1d", "*H -> *I ; move 0 ; nonempty"},
    {"reflection_pad2d replication_pad2d", "*HW -> *IJ ; move 0 ; nonempty"},
    {"reflection_pad3d replication_pad3d", "*HWD -> *IJK ; move 0 ; nonempty"},
    {"reflection_pad1d_backward replication_pad1d_backward", "*I, *H -> *H ; linear 0 ; nonempty"},
    {"reflection_pad2d_backward replication_pad2d_backward",
     "*IJ, *HW -> *HW ; linear 0 ; nonempty"},
    {"reflection_pad3d_backward replication_pad3d_backward",
     "*IJK, *HWD -> *HWD ; linear 0 ; nonempty"},
    {"pixel_shuffle pixel_unshuffle", "*CHW -> *DEF ; move 0 ; nonempty"},
    {"channel_shuffle", "nCs.. -> nCs.. ; move 0 ; nonempty"},
};

}  // namespace

Table convolution_table() { return kConvolutionTable; }

}  // namespace tessera::rules
