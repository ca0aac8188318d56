#include "tessera/rules/tables/tables.h"

/// Ops that move elements without a change of shape that needs arithmetic (those are in
/// rules/code/views.cpp).
namespace tessera::rules {
namespace {

constexpr TableLine kShapeTable[] = {
    {"tril triu", "*MN -> *MN ; move 0"},
    {"flip", "* -> * ; whole $dims ; move 0"},
    {"block_diag", "[MN] -> KL ; linear 0"},
    {"roll", "* -> * ; whole $dims! ; move 0"},
    {"unfold", "* -> *W ; whole $dimension ; move 0"},
    {"_fft_r2c _fft_c2c _fft_c2r", "* -> * ; whole $dim ; pass sum 0 ; nonempty"},
    {"view_as_real", "* -> *C ; pass sum 0"},
    {"view_as_complex", "*C -> * ; pass sum 0"},
};

}  // namespace

Table shape_table() { return kShapeTable; }

}  // namespace tessera::rules
