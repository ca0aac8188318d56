#include "tessera/rules/tables/tables.h"

/// Matrix products. m, n: rows and columns of the result; k: summed over, so sharding it leaves
/// partial sums; b: batch.
namespace tessera::rules {
namespace {

constexpr TableLine kMatrixTable[] = {
    {"mm mm.dtype", "mk, kn -> mn ; linear 0 ; linear 1"},
    {"_int_mm", "mk, kn -> mn ; pass sum 0 ; pass sum 1"},
    {"bmm bmm.dtype", "bmk, bkn -> bmn ; linear 0 ; linear 1"},
    {"addmm addmm.dtype", "+mn, mk, kn -> mn ; linear 1 ; linear 2 ; affine 0"},
    {"_addmm_activation", "+mn, mK, Kn -> mn"},
    {"baddbmm baddbmm.dtype", "+bmn, bmk, bkn -> bmn ; linear 1 ; linear 2 ; affine 0"},
    {"addbmm", "+mn, bmk, bkn -> mn ; linear 1 ; linear 2 ; affine 0 ; nonempty"},
    {"mv", "mk, k -> m ; linear 0 ; linear 1"},
    {"addmv", "+m, mk, k -> m ; linear 1 ; linear 2 ; affine 0 ; nonempty"},
    {"addr", "+mn, m, n -> mn ; linear 1 ; linear 2 ; affine 0"},
    {"dot vdot", "k, k -> . ; linear 0 ; linear 1"},
    {"linear", "*k, nk, +n? -> *n ; linear 0 ; linear 1 | *k, k, +.? -> * ; linear 0 ; linear 1"},
    {"linear_backward", "*k, *, k -> *k, k, .!k ; linear 1 | *k, *n, nk -> *k, nk, n!k ; linear 1"},
    {"t", "mn -> nm ; move 0 | m -> m ; move 0 | . -> . ; move 0"},
    {"linalg_cross", "*, * -> * ; whole $dim ; linear 0 ; linear 1"},
    {"_cdist_forward _euclidean_dist", "*mK, *nK -> *mn"},

    // A scale follows its operand: one number, or one per row and column, or one per block along k,
    // or of 128x128: b counts blocks along k, a and d across.
    {"_scaled_mm",
     "mk, kn, ., ., +n?, _? -> mn ; align 16 0+1 | mk, kn, 1, 1, +n?, _? -> mn ; align 16 0+1 |"
     "mk, kn, m1, 1n, +n?, _? -> mn ; align 16 0+1 |"
     "m(bC), (bC)n, mb, bn, +n?, _? -> mn ; align 16 0+1 |"
     "m(bC), (bC)(dE), mb, bd, +(dE)?, _? -> m(dE) ; align 16 0+1 |"
     "(aX)(bC), (bC)n, ab, bn, +n?, _? -> (aX)n ; align 16 0+1 |"
     "(aX)(bC), (bC)(dE), ab, bd, +(dE)?, _? -> (aX)(dE) ; align 16 0+1"},
    {"_weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu",
     "mK, _, _ -> mN ; nonempty"},
    // Groups are delimited by offsets, so the dim they run along is not sharded. The kernels
    // require strides that are multiples of 16 bytes.
    {"_grouped_mm",
     "gmk, gkn, _?, _? -> gmn ; linear 0 ; linear 1 ; align 16 0+1 ; nonempty |"
     "Mk, Gkn, _?, _? -> Mn ; linear 0 ; linear 1 ; align 16 0+1 ; nonempty |"
     "Gmk, kN, _?, _? -> mN ; linear 0 ; linear 1 ; align 16 0+1 ; nonempty |"
     "mK, Kn, _?, _? -> Gmn ; linear 0 ; linear 1 ; align 16 0+1 ; nonempty"},
    {"_scaled_grouped_mm",
     "gmk, gkn, gm, gn, _?, _?, _? -> gmn ; align 16 0+1 ; nonempty |"
     "Mk, Gkn, M, Gn, _?, _?, _? -> Mn ; align 16 0+1 ; nonempty |"
     "Gmk, kN, Gm, N, _?, _?, _? -> mN ; align 16 0+1 ; nonempty"},
};

}  // namespace

Table matrix_table() { return kMatrixTable; }

}  // namespace tessera::rules
