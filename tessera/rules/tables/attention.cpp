#include "tessera/rules/tables/tables.h"

/// Attention: batch and heads are independent. So are query rows, unless a causal mask or dropout
/// depends on their position; sharding them leaves partial gradients of keys and values. Grouped
/// queries: h key heads, each with G query heads. A single key head is replicated, and its gradient
/// is partial.
///
/// L: rows with a kernel's padding. The memory-efficient one pads what it saves for the backward to
/// multiples of 32: if the parts are such multiples, there is no padding.
///
/// Seeds, offsets and debug masks are `_`: every rank has its own.
namespace tessera::rules {
namespace {

constexpr TableLine kAttentionTable[] = {
    {"_scaled_dot_product_flash_attention_for_cpu",
     "bhqD, b1KD, b1KE, ~bhqK? -> bhqE, bhq ; flag sequence q ; whole q if is_causal ; nonempty |"
     "bhqD, bhKD, bhKE, ~bhqK? -> bhqE, bhq ; flag sequence q ; whole q if is_causal ; nonempty |"
     "b(hG)qD, bhKD, bhKE, ~b(hG)qK? -> b(hG)qE, b(hG)q ; flag sequence q ; whole q if is_causal ;"
     "nonempty"},
    {"_scaled_dot_product_flash_attention_for_cpu_backward",
     "bhqE, bhqD, b1KD, b1KE, bhqE, bhq, ~bhqK? -> bhqD, b1KD, b1KE ; flag sequence q ;"
     "whole q if is_causal ; nonempty ; linear 0 |"
     "bhqE, bhqD, bhKD, bhKE, bhqE, bhq, ~bhqK? -> bhqD, bhKD, bhKE ; flag sequence q ;"
     "whole q if is_causal ; nonempty ; linear 0 |"
     "b(hG)qE, b(hG)qD, bhKD, bhKE, b(hG)qE, b(hG)q, ~b(hG)qK? -> b(hG)qD, bhKD, bhKE ;"
     "flag sequence q ; whole q if is_causal ; nonempty ; linear 0"},
    {"_scaled_dot_product_flash_attention",
     "bhqD, b1KD, b1KE -> bhqE, bhq, _, _, _, _, _, _, _ ; flag sequence q ; whole q if is_causal ;"
     "whole q if dropout_p ; whole bhq if return_debug_mask ; nonempty |"
     "bhqD, bhKD, bhKE -> bhqE, bhq, _, _, _, _, _, _, _ ; flag sequence q ; whole q if is_causal ;"
     "whole q if dropout_p ; whole bhq if return_debug_mask ; nonempty |"
     "b(hG)qD, bhKD, bhKE -> b(hG)qE, b(hG)q, _, _, _, _, _, _, _ ; flag sequence q ;"
     "whole q if is_causal ; whole q if dropout_p ; whole bhq if return_debug_mask ; nonempty"},
    {"_scaled_dot_product_flash_attention_backward",
     "bhqE, bhqD, b1KD, b1KE, bhqE, bhq, _, _, _, _ -> bhqD, b1KD, b1KE ; flag sequence q ;"
     "whole q if is_causal ; whole q if dropout_p ; local $max_q q ; nonempty ; linear 0 |"
     "bhqE, bhqD, bhKD, bhKE, bhqE, bhq, _, _, _, _ -> bhqD, bhKD, bhKE ; flag sequence q ;"
     "whole q if is_causal ; whole q if dropout_p ; local $max_q q ; nonempty ; linear 0 |"
     "b(hG)qE, b(hG)qD, bhKD, bhKE, b(hG)qE, b(hG)q, _, _, _, _ -> b(hG)qD, bhKD, bhKE ;"
     "flag sequence q ; whole q if is_causal ; whole q if dropout_p ; local $max_q q ; nonempty ;"
     "linear 0"},
    {"_scaled_dot_product_flash_attention.quantized",
     "bhQD, b1KD, b1KE, b1?, b1?, b1? -> bhQE, bhQ, _, _, _, _, _, _, _ ;"
     "whole bh if return_debug_mask ; nonempty |"
     "bhQD, bhKD, bhKE, bh?, bh?, bh? -> bhQE, bhQ, _, _, _, _, _, _, _ ;"
     "whole bh if return_debug_mask ; nonempty |"
     "b(hG)QD, bhKD, bhKE, bh?, bh?, bh? -> b(hG)QE, b(hG)Q, _, _, _, _, _, _, _ ;"
     "whole bh if return_debug_mask ; nonempty"},
    {"_scaled_dot_product_efficient_attention",
     "bhqD, bhKD, bhKE, ~bhqK? -> bhqE, bhq, _, _ ; if compute_log_sumexp ; multiple 32 q ;"
     "flag sequence q ; whole q if is_causal ; whole q if dropout_p ; nonempty |"
     "bhqD, bhKD, bhKE, ~bhqK? -> bhqE, bhL!q, _, _ ; unless compute_log_sumexp ;"
     "flag sequence q ; whole q if is_causal ; whole q if dropout_p ; nonempty |"
     "bhQD, bhKD, bhKE, ~bhQK? -> bhQE, bhL, _, _ ; nonempty"},
    {"_scaled_dot_product_efficient_attention_backward",
     "bhqE, bhqD, bhKD, bhKE, ~bhqK?, bhqE, bhq, _, _ -> bhqD, bhKD, bhKE, bhqK ; multiple 32 q ;"
     "flag sequence q ; whole q if is_causal ; whole q if dropout_p ; nonempty ; linear 0 |"
     "bhQE, bhQD, bhKD, bhKE, ~bhQK?, bhQE, bhL, _, _ -> bhQD, bhKD, bhKE, bhQK ; nonempty ;"
     "linear 0"},
    {"_scaled_dot_product_cudnn_attention",
     "bhqD, b1KD, b1KE, ~bhqK? -> bhqE, bhqL, _, _, _, _, _, _, _ ; flag sequence q ;"
     "whole q if is_causal ; whole q if dropout_p ; whole bhq if return_debug_mask ; nonempty |"
     "bhqD, bhKD, bhKE, ~bhqK? -> bhqE, bhqL, _, _, _, _, _, _, _ ; flag sequence q ;"
     "whole q if is_causal ; whole q if dropout_p ; whole bhq if return_debug_mask ; nonempty |"
     "b(hG)qD, bhKD, bhKE, ~b(hG)qK? -> b(hG)qE, b(hG)qL, _, _, _, _, _, _, _ ; flag sequence q ;"
     "whole q if is_causal ; whole q if dropout_p ; whole bhq if return_debug_mask ; nonempty"},
    {"_scaled_dot_product_fused_attention_overrideable",
     "bhQD, bhKD, bhKE, ~bhQK? -> bhQE, bhQ, _, _, _, _, _, _, _ ;"
     "whole bh if return_debug_mask ; nonempty"},
    {"_scaled_dot_product_cudnn_attention_backward",
     "bhqE, bhqD, b1KD, b1KE, bhqE, bhqL, _, _, ~bhqK?, _, _ -> bhqD, b1KD, b1KE ;"
     "flag sequence q ; whole q if is_causal ; whole q if dropout_p ; local $max_q q ;"
     "nonempty ; linear 0 |"
     "bhqE, bhqD, bhKD, bhKE, bhqE, bhqL, _, _, ~bhqK?, _, _ -> bhqD, bhKD, bhKE ;"
     "flag sequence q ; whole q if is_causal ; whole q if dropout_p ; local $max_q q ;"
     "nonempty ; linear 0 |"
     "b(hG)qE, b(hG)qD, bhKD, bhKE, b(hG)qE, b(hG)qL, _, _, ~b(hG)qK?, _, _ ->"
     "b(hG)qD, bhKD, bhKE ; flag sequence q ; whole q if is_causal ; whole q if dropout_p ; local "
     "$max_q q ;"
     "nonempty ; linear 0"},
    {"_scaled_dot_product_fused_attention_overrideable_backward",
     "bhQE, bhQD, bhKD, bhKE, ~bhQK?, bhQE, bhQ, _, _, _, _ -> bhQD, bhKD, bhKE, bhQK ;"
     "nonempty ; linear 0"},
    // Heads after rows; batches of sequences with different lengths are not sharded.
    {"_flash_attention_forward",
     "bQhD, bK1D, bK1E, _?, _?, _?, _?, _? -> bQhE, bhQ, _, _, _ ; whole bh if cum_seq_q ;"
     "whole bh if seqused_k ; whole bh if alibi_slopes ; whole bh if block_table ;"
     "whole bh if return_debug_mask ; nonempty |"
     "bQhD, bKhD, bKhE, _?, _?, _?, _?, _? -> bQhE, bhQ, _, _, _ ; whole bh if cum_seq_q ;"
     "whole bh if seqused_k ; whole bh if alibi_slopes ; whole bh if block_table ;"
     "whole bh if return_debug_mask ; nonempty |"
     "bQ(hG)D, bKhD, bKhE, _?, _?, _?, _?, _? -> bQ(hG)E, b(hG)Q, _, _, _ ; whole bh if cum_seq_q ;"
     "whole bh if seqused_k ; whole bh if alibi_slopes ; whole bh if block_table ;"
     "whole bh if return_debug_mask ; nonempty"},
    {"_flash_attention_backward",
     "bQhE, bQhD, bK1D, bK1E, bQhE, bhQ, _, _, _, _ -> bQhD, bK1D, bK1E ; whole bh if cum_seq_q ;"
     "nonempty ; linear 0 |"
     "bQhE, bQhD, bKhD, bKhE, bQhE, bhQ, _, _, _, _ -> bQhD, bKhD, bKhE ; whole bh if cum_seq_q ;"
     "nonempty ; linear 0 |"
     "bQ(hG)E, bQ(hG)D, bKhD, bKhE, bQ(hG)E, b(hG)Q, _, _, _, _ -> bQ(hG)D, bKhD, bKhE ;"
     "whole bh if cum_seq_q ; nonempty ; linear 0"},
    {"_efficient_attention_forward",
     "bQhD, bKhD, bKhE, ~bhQK?, _?, _?, _? -> bQhE, bhL, _, _, _, _ ; whole bh if cu_seqlens_q ;"
     "whole bh if seqlen_k ; nonempty"},
    {"_efficient_attention_backward",
     "bQhE, bQhD, bKhD, bKhE, ~bhQK?, bQhE, _?, _?, bhL, _, _ -> bQhD, bKhD, bKhE, bhQK ;"
     "whole bh if cu_seqlens_q ; nonempty ; linear 0"},
    {"_cudnn_attention_forward",
     "bhQD, bhKD, bhKE, ~bhQK?, _?, _? -> bhQE, bhQL, _, _, _, _, _, _, _ ;"
     "whole bh if cum_seq_q ; whole bh if return_debug_mask ; nonempty"},
    {"_cudnn_attention_backward",
     "bhQE, bhQD, bhKD, bhKE, bhQE, bhQL, _, _, ~bhQK?, _, _ -> bhQD, bhKD, bhKE ;"
     "whole bh if cum_seq_q ; nonempty ; linear 0"},
};

}  // namespace

Table attention_table() { return kAttentionTable; }

}  // namespace tessera::rules
