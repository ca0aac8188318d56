#include "tessera/rules/tables/tables.h"

/// Normalization. Dims that are averaged over are not sharded; gradients of weights are partial if
/// the rest is sharded. Batch norm averages over the batch: in training its rows shard channels
/// only, and a kernel reduces statistics if the batch or space is sharded.
namespace tessera::rules {
namespace {

constexpr TableLine kNormTable[] = {
    {"native_layer_norm", "*X.., X..?, X..? -> *X.., *1.., *1.. ; rank X $normalized_shape"},
    {"native_layer_norm_backward",
     "*X.., *X.., *1.., *1.., X..?, X..? -> *X.., X.., X.. ; rank X $normalized_shape ; linear 0"},
    {"_fused_rms_norm", "*X.., X..? -> *X.., *1.. ; rank X $normalized_shape"},
    {"_fused_rms_norm_backward",
     "*X.., *X.., *1.., X..? -> *X.., X.. ; rank X $normalized_shape ; linear 0"},
    {"native_group_norm",
     "n(gC)S.., (gC)?, (gC)? -> n(gC)S.., ng, ng ; size g $group ; local $N n ; local $C 0.1 ;"
     "local $group g"},
    {"native_group_norm_backward",
     "n(gC)S.., n(gC)S.., ng, ng, (gC)? -> n(gC)S.., (gC), (gC) ; size g $group ; local $N n ;"
     "local $C 0.1 ; local $group g ; linear 0"},
    {"native_batch_norm _native_batch_norm_legit",
     "NcS.., c?, c?, c?, c? -> NcS.., c, c ; if training ; nonempty ; kernel batch_norm |"
     "ncS.., c?, c?, c?, c? -> ncS.., _, _ ; nonempty"},
    {"_native_batch_norm_legit.no_stats",
     "NcS.., c?, c? -> NcS.., c, c ; nonempty ; kernel batch_norm if training"},
    {"_native_batch_norm_legit_no_training", "ncS.., c?, c?, c, c -> ncS.., _, _ ; nonempty"},
    {"_batch_norm_with_update",
     "NcS.., c?, c?, c, c -> NcS.., c, c, _ ; nonempty ; kernel batch_norm"},
    {"_batch_norm_no_update", "ncS.., c?, c?, c?, c? -> ncS.., _, _, _ ; nonempty"},
    {"native_batch_norm_backward",
     "NcS.., NcS.., c?, c?, c?, c?, c? -> NcS.., c, c ; if train ; linear 0 ; nonempty ;"
     "kernel batch_norm_backward |"
     "ncS.., ncS.., c?, c?, c?, _?, _? -> ncS.., c, c ; linear 0 ; nonempty"},
    {"_weight_norm_interface", "oX.., o1.. -> oX.., o1.. ; if dim=0 ; nonempty"},
    {"_weight_norm_interface_backward",
     "oX.., oX.., o1.., o1.. -> oX.., o1.. ; if dim=0 ; linear 0 ; nonempty"},
    {"_native_batch_norm_legit_functional",
     "NcS.., c?, c?, c, c -> NcS.., c, c, c, c ; if training ; nonempty ; kernel batch_norm |"
     "ncS.., c?, c?, c, c -> ncS.., _, _, c!n, c!n ; nonempty"},
    {"_batch_norm_with_update_functional",
     "NcS.., c?, c?, c, c -> NcS.., c, c, _, c, c ; nonempty ; kernel batch_norm"},
    // Other backends' kernels never see a shard.
    {"cudnn_batch_norm",
     "NCS.., C, C?, C?, C? -> NCS.., C, C, _ ; if training ; kernel batch_norm"},
    {"miopen_batch_norm", "NCS.., C, C?, C?, C? -> NCS.., C, C ; if training ; kernel batch_norm"},
    {"cudnn_batch_norm_backward",
     "NCS.., NCS.., C, C?, C?, C?, C?, _ -> NCS.., C, C ; kernel batch_norm_backward"},
    {"miopen_batch_norm_backward",
     "NCS.., NCS.., C, C?, C?, C?, C? -> NCS.., C, C ; kernel batch_norm_backward"},
    {"batch_norm_backward",
     "NCS.., NCS.., C, C?, C?, C?, C?, _ -> NCS.., C, C ; if update ; kernel batch_norm_backward"},
    // The building blocks of a batch norm over several devices.
    {"batch_norm_stats", "NcS.. -> c, c ; nonempty"},
    {"batch_norm_update_stats", "NcS.., c?, c? -> c, c ; nonempty ; kernel batch_norm"},
    {"batch_norm_gather_stats", "&, Wc, Wc, c?, c? -> c, c ; nonempty"},
    {"batch_norm_gather_stats_with_counts", "&, Wc, Wc, c?, c?, _ -> c, c ; nonempty"},
    {"batch_norm_backward_reduce", "ncS.., ncS.., c, c, c? -> c, c, c, c ; nonempty ; linear 0"},
    {"batch_norm_backward_elemt", "ncS.., ncS.., c, c, c?, c, c, _ -> ncS.. ; nonempty"},
    {"batch_norm_elemt", "ncS.., c?, c?, c, c -> ncS.. ; nonempty"},
};

}  // namespace

Table norm_table() { return kNormTable; }

}  // namespace tessera::rules
