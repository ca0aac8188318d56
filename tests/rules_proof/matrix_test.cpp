#include "tests/rules_proof/prove_all.h"

namespace tessera::test {
namespace {

constexpr const char* kLines[] = {
    "aten::mm 5x6 6x4",
    "aten::mm 1x3 3x2",
    "aten::mm 4x3:c128 3x5:c128",
    "aten::mm 4x3:i64 3x5:i64",
    "aten::mm.out 5x6 6x4 out=5x4",
    "aten::bmm 3x5x2 3x2x4",
    "aten::addmm 5x4 5x6 6x4",
    "aten::addmm 4 5x6 6x4 beta=0.5 alpha=2",
    "aten::addmm 1x4 5x6 6x4",
    "aten::addmm 5x1 5x6 6x4",
    "aten::addmm_ 5x4 5x6 6x4",
    "aten::addmm.out 4 5x6 6x4 out=5x4",
    "aten::_addmm_activation 4 5x6 6x4",
    "aten::baddbmm 3x5x4 3x5x2 3x2x4",
    "aten::baddbmm 4 3x5x2 3x2x4",
    "aten::addbmm 5x4 3x5x2 3x2x4",
    "aten::mv 5x3 3",
    "aten::addmv 5 5x3 3",
    "aten::addmv scalar 5x3 3",
    "aten::addr 5x3 5 3",
    "aten::addr 3 5 3",
    "aten::dot 7 7",
    "aten::vdot 5:c128 5:c128",
    "aten::linear 2x5x3 4x3 4",
    "aten::linear 2x5x3 4x3 -",
    "aten::linear 3 4x3 4",
    "aten::linear 2x3 3 -",
    "aten::t 5x3",
    "aten::t 5",
    "aten::t_copy 5x3",
    "aten::transpose.int 5x3x2 dim0=0 dim1=-1",
    "aten::permute 5x3x2 dims={2,0,1}",
    "aten::linalg_cross 5x3 5x3 dim=1",
    "aten::_cdist_forward 2x5x3 2x4x3 p=2.0 compute_mode=-",
    "aten::_cdist_forward 5x3 2x4x3 p=1.0 compute_mode=-",
    "aten::_cdist_backward 2x5x4 2x5x3 2x4x3 p=2.0 cdist=2x5x4:pos",
};

TEST(RulesOfMatrices, EveryRowIsRight) {
  const Tally tally = prove_lines(kLines);
  EXPECT_GT(tally.rows, 500);
}

}  // namespace
}  // namespace tessera::test
