#include "tests/rules_proof/prove_all.h"

namespace tessera::test {
namespace {

constexpr const char* kLines[] = {
    "aten::gather 5x4 5x2:i64<4 dim=1",
    "aten::gather 5x4 3x4:i64<5 dim=0",
    "aten::gather 5x4 1x2:i64<4 dim=1",
    "aten::gather 5x4x3 5x2x3:i64<4 dim=1",
    "aten::scatter.src 5x4 5x1:i64<4 5x1 dim=1",
    "aten::scatter.value 5x4 5x2:i64<4 dim=1 value=0",
    "aten::scatter.value 5x4 5x2:i64<4 dim=1 value=1.5",
    "aten::scatter_.value 5x4 5x2:i64<4 dim=1 value=1.5",
    "aten::scatter.value_reduce 5x4 5x2:i64<4 dim=1 value=1.5 reduce=add",
    "aten::scatter.reduce 5x4 5x2:i64<4 5x2 dim=1 reduce=add",
    "aten::scatter_add 5x4 5x6:i64<4 5x6 dim=1",
    "aten::scatter_add 5x4 3x4:i64<5 3x4 dim=0",
    "aten::scatter_add 5x4 3x4:i64<5 5x4 dim=0",
    "aten::scatter_add_ 5x4 3x4:i64<5 3x4 dim=0",
    "aten::scatter_reduce.two 5x4 5x6:i64<4 5x6 dim=1 reduce=amax include_self=true",
    "aten::index_select 5x4 6:i64<4 dim=1",
    "aten::index_select 5x4 7:i64<5 dim=0",
    "aten::index_add 5x4 3:i64<5 3x4 dim=0 alpha=2",
    "aten::index_copy 5x4 2:perm 5x2 dim=1",
    "aten::index_fill.int_Scalar 5x4 2:i64<4 dim=1 value=0",
    "aten::index_fill.int_Scalar 5x4 2:i64<4 dim=1 value=1.5",
    "aten::index_fill.int_Tensor 5x4 2:i64<4 scalar dim=1",
    "aten::index_reduce 5x4 3:i64<5 3x4 dim=0 reduce=amax",
    "aten::index.Tensor 5x4x3 [6:i64<5]",
    "aten::index.Tensor 5x4x3 [-;6:i64<4]",
    "aten::index.Tensor 5x4x3 [6:i64<5;6:i64<4]",
    "aten::index.Tensor 5x4x3 [2x1:i64<5;-;1x6:i64<3]",
    "aten::index.Tensor 5x4x3 [-;2x3:i64<4;3:i64<3]",
    "aten::index.Tensor 5x4 [5x4:bool]",
    "aten::_unsafe_index.Tensor 5x4x3 [-;6:i64<4]",
    "aten::index_put 5x4x3 [3:perm] 3x4x3",
    "aten::index_put 5x4x3 [-;2:perm] 5x2x3",
    "aten::index_put 5x4x3 [6:i64<5] 6x4x3 accumulate=true",
    "aten::index_put 5x4x3 [6:i64<5] 4x3 accumulate=true",
    "aten::index_put 5x4x3 [6:i64<5;6:i64<4] scalar accumulate=true",
    "aten::index_put 5x4x3 [6:i64<5;-;6:i64<3] 6x4 accumulate=true",
    "aten::index_put_ 5x4x3 [6:i64<5] 1x4x3 accumulate=true",
    "aten::_index_put_impl_ 5x4x3 [6:i64<5] 6x4x3 accumulate=true",
    "aten::select_scatter 5x4x3 5x3 dim=1 index=2",
    "aten::slice_scatter 5x4 5x2 dim=1 start=1 end=3",
    "aten::embedding 7x4 5x3:i64<7",
    "aten::embedding_dense_backward 5x3x4 5x3:i64<7 num_weights=7 padding_idx=2 "
    "scale_grad_by_freq=false",
    "aten::embedding_dense_backward 5x4 5:i64<7 num_weights=7 padding_idx=-1 "
    "scale_grad_by_freq=true",
    "aten::bucketize.Tensor 5x3 4:pos",
    "aten::searchsorted.Tensor 4:pos 5x3",
    "aten::searchsorted.Tensor 5x4:pos 5x3",
    "aten::isin.Tensor_Tensor 5x3:i64 4:i64",
    "aten::take 5x3 4x2:i64<15",
};

TEST(RulesOfIndexing, EveryRowIsRight) { EXPECT_GT(prove_lines(kLines).rows, 500); }

}  // namespace
}  // namespace tessera::test
