#include "tessera/rules/tables/tables.h"

/// Simulated quantization in floating point: element-wise, with a scale and a zero point for all or
/// per channel. C: channels.
namespace tessera::rules {
namespace {

constexpr TableLine kQuantizeTable[] = {
    {"fake_quantize_per_tensor_affine_cachemask", "* -> *, *"},
    {"_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", "*, _, _, _ -> *, *"},
    {"_fake_quantize_learnable_per_tensor_affine", "*, _, _ -> *"},
    {"fake_quantize_per_channel_affine_cachemask", "*, C, C -> *, * ; whole $axis"},
    {"_fake_quantize_learnable_per_channel_affine", "*, C, C -> * ; whole $axis"},
};

}  // namespace

Table quantize_table() { return kQuantizeTable; }

}  // namespace tessera::rules
