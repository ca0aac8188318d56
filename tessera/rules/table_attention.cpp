#include "tessera/rules/tables.h"

/// Attention: batch and heads are independent. Query rows are too, if no causal mask counts them
/// and the kernel takes any number of them; cutting them leaves partial gradients of keys and
/// values. Grouped queries: h key heads, each with G query heads.
namespace tessera::rules {
namespace {

constexpr TableLine kTable[] = {
    {"_scaled_dot_product_flash_attention_for_cpu",
     "bhqD, bhKD, bhKE, bhqK? -> bhqE, bhq ; whole q if is_causal ; nonempty |"
     "b(hG)qD, bhKD, bhKE, b(hG)qK? -> b(hG)qE, b(hG)q ; whole q if is_causal ; nonempty"},
    {"_scaled_dot_product_flash_attention_for_cpu_backward",
     "bhqE, bhqD, bhKD, bhKE, bhqE, bhq, bhqK? -> bhqD, bhKD, bhKE ; whole q if is_causal ;"
     "nonempty ; linear 0"},
    {"_scaled_dot_product_flash_attention",
     "bhQD, bhKD, bhKE -> bhQE, bhQ, _, _, _, _, _, _, _ ; whole bh if return_debug_mask |"
     "b(hG)QD, bhKD, bhKE -> b(hG)QE, b(hG)Q, _, _, _, _, _, _, _ ; whole bh if return_debug_mask"},
    {"_scaled_dot_product_flash_attention_backward",
     "bhQE, bhQD, bhKD, bhKE, bhQE, bhQ, _, _, _, _ -> bhQD, bhKD, bhKE ; linear 0"},
    {"_scaled_dot_product_efficient_attention", "bhQD, bhKD, bhKE, bhQK? -> bhQE, bhL, _, _"},
    {"_scaled_dot_product_efficient_attention_backward",
     "bhQE, bhQD, bhKD, bhKE, bhQK?, bhQE, bhL, _, _ -> bhQD, bhKD, bhKE, bhQK ; linear 0"},
    {"_scaled_dot_product_cudnn_attention",
     "bhQD, bhKD, bhKE, bhQK? -> bhQE, bhQL, _, _, _, _, _, _, _ ; whole bh if return_debug_mask"},
    {"_scaled_dot_product_cudnn_attention_backward",
     "bhQE, bhQD, bhKD, bhKE, bhQE, bhQL, _, _, bhQK?, _, _ -> bhQD, bhKD, bhKE ; linear 0"},
    {"_scaled_dot_product_fused_attention_overrideable",
     "bhQD, bhKD, bhKE, bhQK? -> bhQE, bhL.., _, _, _, _, _, _, _ ; whole bh if return_debug_mask"},
    {"_scaled_dot_product_fused_attention_overrideable_backward",
     "bhQE, bhQD, bhKD, bhKE, bhQK?, bhQE, bhL.., _, _, _, _ -> bhQD, bhKD, bhKE, bhQK ; linear 0"},
    // Heads after rows; sequences of several lengths in one batch stay whole.
    {"_flash_attention_forward",
     "bQhD, bKhD, bKhE, _?, _?, _?, _? -> bQhE, bhQ, _, _, _ ; whole bh if cum_seq_q"},
    {"_efficient_attention_forward",
     "bQhD, bKhD, bKhE, bhQK?, _?, _?, _? -> bQhE, bhL, _, _, _, _ ; whole bh if cu_seqlens_q"},
};

}  // namespace

Table attention_table() { return kTable; }

}  // namespace tessera::rules
