#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/watched_call.h"

/// Products as users write them, on meshes of two axes: where the shards fit each other, nothing is
/// gathered, forward or backward.
namespace tessera::test {
namespace products_test {

const Function kMatmul = [](const Tensors& x) { return at::matmul(x[0], x[1]); };

Function einsum(const char* equation) {
  return [equation](const Tensors& x) { return at::einsum(equation, x); };
}

TEST(Products, OfBatchesOfMatricesGatherNothing) {
  const Function bmm = [](const Tensors& x) { return at::bmm(x[0], x[1]); };
  const std::vector<int64_t> a = {4, 6, 8}, b = {4, 8, 10};
  check_calls("dp=2,tp=2",
              {
                  {"bmm, batch", bmm, {{a, "S0,R"}, {b, "S0,R"}}, "S0,R"},
                  {"bmm, batch twice", bmm, {{a, "S0,S0"}, {b, "S0,S0"}}, "S0,S0"},
                  {"bmm, batch and rows", bmm, {{a, "S0,S1"}, {b, "S0,R"}}, "S0,S1"},
                  {"bmm, batch and columns", bmm, {{a, "S0,R"}, {b, "S0,S2"}}, "S0,S2"},
                  {"bmm, batch and the summed dim", bmm, {{a, "S0,S2"}, {b, "S0,S1"}}, "S0,P(sum)"},
                  {"bmm, rows and columns", bmm, {{a, "S1,R"}, {b, "R,S2"}}, "S1,S2"},
                  {"bmm, rows and the summed dim", bmm, {{a, "S1,S2"}, {b, "R,S1"}}, "S1,P(sum)"},
                  {"baddbmm",
                   [](const Tensors& x) { return at::baddbmm(x[0], x[1], x[2]); },
                   {{{4, 6, 10}, "S0,S1"}, {a, "S0,S1"}, {b, "S0,R"}},
                   "S0,S1"},
              });
}

TEST(Products, MatmulOfManyDimsGathersNothing) {
  const std::vector<int64_t> q = {4, 2, 6, 8}, k = {4, 2, 8, 6};
  check_calls(
      "dp=2,tp=2",
      {
          {"batch and heads", kMatmul, {{q, "S0,S1"}, {k, "S0,S1"}}, "S0,S1"},
          {"heads and batch", kMatmul, {{q, "S1,S0"}, {k, "S1,S0"}}, "S1,S0"},
          {"batch and rows", kMatmul, {{q, "S0,S2"}, {k, "S0,R"}}, "S0,S2"},
          {"batch and columns", kMatmul, {{q, "S0,R"}, {k, "S0,S3"}}, "S0,S3"},
          {"uneven batch", kMatmul, {{{3, 2, 6, 8}, "S0,R"}, {{3, 2, 8, 6}, "S0,R"}}, "S0,R"},
          {"a batch of rows by a matrix",
           kMatmul,
           {{{4, 6, 8}, "S0,R"}, {{8, 10}, "R,S1"}},
           "S0,S2"},
          {"a sequence shard by a matrix",
           kMatmul,
           {{{4, 6, 8}, "S0,S1"}, {{8, 10}, "R,R"}},
           "S0,S1"},
          {"a matrix by a matrix", kMatmul, {{{6, 8}, "S0,R"}, {{8, 10}, "R,S1"}}, "S0,S1"},
          {"a matrix by a vector", kMatmul, {{{6, 8}, "S0,S1"}, {{8}, "R,S0"}}, "S0,P(sum)"},
          {"a vector by a matrix", kMatmul, {{{6}, "R,R"}, {{6, 8}, "S1,R"}}, "S0,R"},
          {"two vectors", kMatmul, {{{8}, "S0,S0"}, {{8}, "S0,S0"}}, "P(sum),P(sum)"},
          {"a batch that is broadcast",
           kMatmul,
           {{{4, 2, 6, 8}, "S0,R"}, {{1, 2, 8, 6}, "R,R"}},
           "S0,R"},
      });
}

TEST(Products, EinsumGathersNothing) {
  check_calls("dp=2,tp=2",
              {
                  {"matrices", einsum("ij,jk->ik"), {{{4, 6}, "S0,R"}, {{6, 8}, "R,S1"}}, "S0,S1"},
                  {"the summed dim",
                   einsum("ij,jk->ik"),
                   {{{4, 6}, "S0,S1"}, {{6, 8}, "R,S0"}},
                   "S0,P(sum)"},
                  {"batches",
                   einsum("bij,bjk->bik"),
                   {{{4, 3, 6}, "S0,S0"}, {{4, 6, 8}, "S0,S0"}},
                   "S0,S0"},
                  {"scores of attention",
                   einsum("bhqd,bhkd->bhqk"),
                   {{{4, 2, 6, 8}, "S0,S1"}, {{4, 2, 6, 8}, "S0,S1"}},
                   "S0,S1"},
                  {"values of attention",
                   einsum("bhqk,bhkd->bhqd"),
                   {{{4, 2, 6, 8}, "S0,S1"}, {{4, 2, 8, 5}, "S0,S1"}},
                   "S0,S1"},
                  {"heads beside the width",
                   einsum("bqhd,bkhd->bhqk"),
                   {{{4, 6, 2, 8}, "S0,S2"}, {{4, 6, 2, 8}, "S0,S2"}},
                   "S0,S1"},
                  {"a projection of heads",
                   einsum("bqhd,hdo->bqo"),
                   {{{4, 6, 2, 8}, "S0,R"}, {{2, 8, 10}, "R,S2"}},
                   "S0,S2"},
                  {"heads that are summed over",
                   einsum("bqhd,hdo->bqo"),
                   {{{4, 6, 2, 8}, "S0,S2"}, {{2, 8, 10}, "R,S0"}},
                   "S0,P(sum)"},
                  {"an outer product", einsum("i,j->ij"), {{{4}, "S0,R"}, {{6}, "R,S0"}}, "S0,S1"},
                  {"a row sum", einsum("ij->i"), {{{4, 6}, "S0,S1"}}, "S0,P(sum)"},
                  {"a transposition", einsum("ij->ji"), {{{4, 6}, "S0,S1"}}, "S1,S0"},
                  {"three factors",
                   einsum("ij,jk,kl->il"),
                   {{{4, 6}, "S0,R"}, {{6, 5}, "R,R"}, {{5, 8}, "R,S1"}},
                   "S0,S1"},
              });
}

TEST(Products, OfTensorsGatherNothing) {
  check_calls("dp=2,tp=2",
              {
                  {"tensordot over one dim",
                   [](const Tensors& x) { return at::tensordot(x[0], x[1], {2}, {0}); },
                   {{{4, 3, 6}, "S0,R"}, {{6, 8}, "R,S1"}},
                   "S0,S2"},
                  {"tensordot over two dims",
                   [](const Tensors& x) {
                     return at::tensordot(x[0], x[1], {1, 2}, {0, 1});
                   },
                   {{{4, 2, 6}, "S0,S1"}, {{2, 6, 8}, "R,S0"}},
                   "S0,P(sum)"},
                  {"kron",
                   [](const Tensors& x) { return at::kron(x[0], x[1]); },
                   {{{4, 3}, "S0,R"}, {{2, 6}, "R,R"}},
                   "S0,R"},
                  {"kron of rows and columns",
                   [](const Tensors& x) { return at::kron(x[0], x[1]); },
                   {{{4, 2}, "S0,S1"}, {{2, 6}, "R,R"}},
                   "S0,S1"},
                  {"outer",
                   [](const Tensors& x) { return at::outer(x[0], x[1]); },
                   {{{4}, "S0,R"}, {{6}, "R,S0"}},
                   "S0,S1"},
                  {"inner",
                   [](const Tensors& x) { return at::inner(x[0], x[1]); },
                   {{{4, 6}, "S0,R"}, {{8, 6}, "R,S0"}},
                   "S0,S1"},
                  {"chain_matmul",
                   [](const Tensors& x) {
                     return at::linalg_multi_dot({x[0], x[1], x[2]});
                   },
                   {{{4, 6}, "S0,R"}, {{6, 5}, "R,R"}, {{5, 8}, "R,S1"}},
                   "S0,S1"},
              });
}

}  // namespace products_test
}  // namespace tessera::test
