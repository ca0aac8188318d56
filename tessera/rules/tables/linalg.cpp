#include "tessera/rules/tables/tables.h"

/// Linear algebra: batches may be sharded, matrices not.
namespace tessera::rules {
namespace {

constexpr TableLine kLinalgTable[] = {
    {"cholesky cholesky_inverse linalg_matrix_exp", "*MN -> *MN"},
    {"linalg_cholesky_ex linalg_inv_ex", "*MN -> *MN, *"},
    {"cholesky_solve _cholesky_solve_helper", "*MK, *MN -> *MK"},
    {"_linalg_det", "*MN -> *, *MN, *M"},
    {"_linalg_slogdet", "*MN -> *, *, *MN, *M"},
    {"_linalg_eigh", "*MN -> *M, *MN ; if compute_v=true | *MN -> *M, _"},
    {"linalg_eig", "*MN -> *M, *MN"},
    {"_linalg_eigvals", "*MN -> *M"},
    {"_linalg_svd", "*MN -> *MK, *K, *LN ; if compute_uv=true | *MN -> _, *K, _"},
    {"linalg_qr", "*MN -> *MK, *LN ; if mode=reduced | *MN -> *MK, *LN ; if mode=complete"},
    {"geqrf", "*MN -> *MN, *K"},
    {"linalg_householder_product", "*MN, *K -> *MN ; aligned"},
    {"ormqr", "*MN, *K, *AB -> *AB ; aligned"},
    {"linalg_lu_factor_ex", "*MN -> *MN, *K, *"},
    {"linalg_lu", "*MN -> *PQ, *MK, *LN ; if pivot=true | *MN -> _, *MK, *LN"},
    {"lu_unpack",
     "*MN, *K -> *PQ, *MR, *LN ; if unpack_data=true ; if unpack_pivots=true |"
     "*MN, *K -> _, *MR, *LN ; if unpack_data=true | *MN, *K -> *PQ, _, _ ; if unpack_pivots=true"},
    {"linalg_lu_solve", "*MN, *M, *MK -> *MK ; aligned"},
    {"linalg_ldl_factor_ex", "*MN -> *MN, *M, *"},
    {"linalg_ldl_solve", "*MN, *M, *MK -> *MK ; aligned"},
    {"linalg_solve_triangular", "*MN, *AB -> *AB"},
    {"triangular_solve", "*AB, *MN -> *AB, *MN ; aligned"},
    {"_linalg_solve_ex", "*MN, *MK -> *MK, *MN, *M, * ; aligned"},
    {"linalg_pinv.atol_rtol_tensor", "*MN, _?, _? -> *NM"},
};

}  // namespace

Table linalg_table() { return kLinalgTable; }

}  // namespace tessera::rules
