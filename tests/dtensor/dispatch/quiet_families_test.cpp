#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/watched_call.h"

/// Nothing is sent where the sharded dim is not the one that an op works along: one call or more of
/// each family of ops, forward and backward. (zero_communication_test.cpp has the commonest.)
namespace tessera::test {
namespace quiet_families_test {

constexpr const char* kMesh = "tp=4";
const std::vector<int64_t> kMatrix = {8, 6};
const std::vector<int64_t> kImages = {4, 8, 6, 6};

/// Of one input, sharded along dim 0, which the result keeps.
WatchedCall rows(const char* what, at::Tensor (*f)(const at::Tensor&),
                 std::vector<int64_t> shape = kMatrix, const char* backward = "nothing") {
  return {what,
          [f](const Tensors& x) { return f(x[0]); },
          {{std::move(shape), "S0"}},
          "S0",
          "nothing",
          backward};
}

/// libtorch's derivatives of products ask whether some factor is zero.
constexpr const char* kAsksForZeros = "1 all_reduce";

TEST(QuietFamilies, OrdersAndSelections) {
  check_calls(
      kMesh, {
                 rows("topk", [](const auto& x) { return std::get<0>(at::topk(x, 2, 1)); }),
                 rows("sort", [](const auto& x) { return std::get<0>(at::sort(x, 1)); }),
                 rows("kthvalue", [](const auto& x) { return std::get<0>(at::kthvalue(x, 2, 1)); }),
                 rows("median", [](const auto& x) { return std::get<0>(at::median(x, 1)); }),
                 rows("nanmedian", [](const auto& x) { return std::get<0>(at::nanmedian(x, 1)); }),
                 rows("mode", [](const auto& x) { return std::get<0>(at::mode(x, 1)); }),
                 rows("cummax", [](const auto& x) { return std::get<0>(at::cummax(x, 1)); }),
                 rows("msort of the other dim", [](const auto& x) { return at::msort(x.t()).t(); }),
                 rows("quantile", [](const auto& x) { return at::quantile(x, 0.3, 1); }),
             });
}

TEST(QuietFamilies, Reductions) {
  check_calls(
      kMesh,
      {
          rows("logsumexp", [](const auto& x) { return at::logsumexp(x, {1}); }),
          rows(
              "prod", [](const auto& x) { return at::prod(x, 1); }, kMatrix, kAsksForZeros),
          rows("amax", [](const auto& x) { return at::amax(x, {1}); }),
          rows("norm of 2", [](const auto& x) { return at::norm(x, 2, {1}); }),
          rows("norm of inf",
               [](const auto& x) { return at::linalg_vector_norm(x, INFINITY, {{1}}); }),
          rows("norm of 3", [](const auto& x) { return at::linalg_vector_norm(x, 3, {{1}}); }),
          rows("std", [](const auto& x) { return at::std(x, {1}); }),
          rows(
              "cumprod", [](const auto& x) { return at::cumprod(x, 1); }, kMatrix, kAsksForZeros),
          rows("logcumsumexp", [](const auto& x) { return at::logcumsumexp(x, 1); }),
          rows("nansum", [](const auto& x) { return at::nansum(x, {1}); }),
      });
}

TEST(QuietFamilies, Normalisation) {
  const std::vector<int64_t> channels = {4, 8, 6};
  check_calls(kMesh, {
                         {"batch_norm by channels",
                          [](const Tensors& x) {
                            return at::batch_norm(x[0], x[1], x[2], {}, {}, true, 0.1, 1e-5, false);
                          },
                          {{channels, "S1"}, {{8}, "S0"}, {{8}, "S0"}},
                          "S1"},
                         {"group_norm by groups",
                          [](const Tensors& x) { return at::group_norm(x[0], 4, x[1], x[2]); },
                          {{channels, "S1"}, {{8}, "S0"}, {{8}, "S0"}},
                          "S1"},
                         rows("rms_norm", [](const auto& x) { return at::rms_norm(x, {6}); }),
                     });
}

TEST(QuietFamilies, Losses) {
  const auto two = [](const char* what, at::Tensor (*f)(const at::Tensor&, const at::Tensor&)) {
    return WatchedCall{what,
                       [f](const Tensors& x) { return f(x[0], x[1]); },
                       {{kMatrix, "S0"}, {kMatrix, "S0"}},
                       "P(sum)"};
  };
  check_calls(
      kMesh,
      {
          two("huber_loss", [](const auto& a, const auto& b) { return at::huber_loss(a, b, 2); }),
          two("smooth_l1_loss",
              [](const auto& a, const auto& b) { return at::smooth_l1_loss(a, b, 2); }),
          two("kl_div", [](const auto& a, const auto& b) { return at::kl_div(a, b.exp(), 2); }),
          two("l1_loss", [](const auto& a, const auto& b) { return at::l1_loss(a, b, 2); }),
          {"cosine_similarity",
           [](const Tensors& x) { return at::cosine_similarity(x[0], x[1], 1); },
           {{kMatrix, "S0"}, {kMatrix, "S0"}},
           "S0"},
          {"multi_margin_loss",
           [](const Tensors& x) { return at::multi_margin_loss(x[0], x[1], 1, 1, {}, 2); },
           {{kMatrix, "S0"}, {{8}, "S0", 6}},
           "P(sum)"},
          {"nll_loss of each",
           [](const Tensors& x) { return at::nll_loss(x[0], x[1], {}, 0); },
           {{kMatrix, "S0"}, {{8}, "S0", 6}},
           "S0"},
      });
}

TEST(QuietFamilies, ConvolutionsAndPools) {
  const std::vector<int64_t> signal = {4, 2, 8}, volume = {4, 2, 4, 4, 4};
  check_calls(
      kMesh,
      {
          {"conv1d of a batch",
           [](const Tensors& x) { return at::conv1d(x[0], x[1]); },
           {{signal, "S0"}, {{3, 2, 3}, "R"}},
           "S0"},
          {"conv3d of a batch",
           [](const Tensors& x) { return at::conv3d(x[0], x[1]); },
           {{volume, "S0"}, {{3, 2, 2, 2, 2}, "R"}},
           "S0"},
          {"conv_transpose2d of a batch",
           [](const Tensors& x) { return at::conv_transpose2d(x[0], x[1]); },
           {{kImages, "S0"}, {{8, 3, 2, 2}, "R"}},
           "S0"},
          {"conv2d by groups",
           [](const Tensors& x) {
             return at::conv2d(x[0], x[1], at::Tensor(), 1, at::IntArrayRef({0, 0}), 1, 4);
           },
           {{kImages, "S1"}, {{4, 2, 3, 3}, "S0"}},
           "S1"},
          rows("max_pool1d", [](const auto& x) { return at::max_pool1d(x, 2); }, {4, 2, 8}),
          rows("max_pool3d", [](const auto& x) { return at::max_pool3d(x, 2); }, {4, 2, 4, 4, 4}),
          rows("avg_pool3d", [](const auto& x) { return at::avg_pool3d(x, 2); }, {4, 2, 4, 4, 4}),
          rows(
              "adaptive_max_pool2d",
              [](const auto& x) {
                return std::get<0>(at::adaptive_max_pool2d(x, {2, 2}));
              },
              kImages),
          rows(
              "upsample_bilinear2d",
              [](const auto& x) {
                return at::upsample_bilinear2d(x, {8, 8}, false);
              },
              kImages),
          rows(
              "grid_sampler",
              [](const auto& x) {
                return at::grid_sampler(x, x.slice(1, 0, 6).slice(3, 0, 2), 0, 0, false);
              },
              kImages),
          rows(
              "pixel_shuffle", [](const auto& x) { return at::pixel_shuffle(x, 2); }, kImages),
      });
}

TEST(QuietFamilies, Moves) {
  check_calls(
      kMesh,
      {
          rows("tril", [](const auto& x) { return at::tril(x); }, {4, 5, 6}),
          rows("roll", [](const auto& x) { return at::roll(x, {1}, {1}); }),
          rows("flip", [](const auto& x) { return at::flip(x, {1}); }),
          rows("tile",
               [](const auto& x) {
                 return at::tile(x, {1, 3});
               }),
          rows("constant_pad",
               [](const auto& x) {
                 return at::constant_pad_nd(x, {1, 2});
               }),
          rows("reflection_pad",
               [](const auto& x) {
                 return at::reflection_pad1d(x, {1, 2});
               },
               {4, 3, 6}),
          rows("circular pad",
               [](const auto& x) {
                 return at::pad(x, std::vector<int64_t>{1, 2}, "circular");
               },
               {4, 3, 6}),
          rows("diagonal", [](const auto& x) { return at::diagonal(x, 0, 1, 2); }, {4, 5, 6}),
          rows("unfold", [](const auto& x) { return x.unfold(1, 3, 2); }),
          rows("fft", [](const auto& x) { return at::real(at::fft_fft(x, {}, 1)); }),
          rows("rfft", [](const auto& x) { return at::abs(at::fft_rfft(x, {}, 1)); }),
      });
}

TEST(QuietFamilies, Indexing) {
  const Input index{{8, 3}, "S0", 6};
  check_calls(
      kMesh, {
                 {"scatter_add",
                  [](const Tensors& x) { return at::scatter_add(x[0], 1, x[2], x[1]); },
                  {{kMatrix, "S0"}, {{8, 3}, "S0"}, index},
                  "S0"},
                 {"scatter_reduce",
                  [](const Tensors& x) { return at::scatter_reduce(x[0], 1, x[2], x[1], "sum"); },
                  {{kMatrix, "S0"}, {{8, 3}, "S0"}, index},
                  "S0"},
                 {"take_along_dim",
                  [](const Tensors& x) { return at::take_along_dim(x[0], x[1], 1); },
                  {{kMatrix, "S0"}, index},
                  "S0"},
                 {"index of another dim",
                  [](const Tensors& x) {
                    return at::index(x[0], {std::nullopt, x[1]});
                  },
                  {{kMatrix, "S0"}, {{3}, "R", 6}},
                  "S0"},
                 {"index_add of another dim",
                  [](const Tensors& x) { return at::index_add(x[0], 1, x[2], x[1]); },
                  {{kMatrix, "S0"}, {{8, 3}, "S0"}, {{3}, "R", 6}},
                  "S0"},
                 {"index_put of another dim",
                  [](const Tensors& x) {
                    return at::index_put(x[0], {std::nullopt, x[2]}, x[1], /*accumulate=*/true);
                  },
                  {{kMatrix, "S0"}, {{8, 3}, "S0"}, {{3}, "R", 6}},
                  "S0"},
                 {"masked_fill",
                  [](const Tensors& x) { return at::masked_fill(x[0], x[0] > 0, 2.0); },
                  {{kMatrix, "S0"}},
                  "S0"},
                 {"embedding_bag of sharded columns",
                  [](const Tensors& x) { return std::get<0>(at::embedding_bag(x[0], x[1], x[2])); },
                  {{{6, 8}, "S1"}, {{5}, "R", 6}, {{1}, "R", 1}},
                  "S1"},
             });
}

TEST(QuietFamilies, LinearAlgebraOfBatches) {
  const std::vector<int64_t> square = {4, 3, 3};
  const char* check = "1 all_gather";  // whether some matrix is singular, for all to know
  const auto spd = [](const at::Tensor& x) {
    return at::matmul(x, x.mT()) + 3 * at::diag_embed(at::ones_like(x.select(1, 0)));
  };
  check_calls(kMesh, {
                         {"cholesky",
                          [&](const Tensors& x) { return at::linalg_cholesky(spd(x[0])); },
                          {{square, "S0"}},
                          "S0",
                          check},
                         {"inverse",
                          [&](const Tensors& x) { return at::linalg_inv(spd(x[0])); },
                          {{square, "S0"}},
                          "S0",
                          check},
                         {"det",
                          [&](const Tensors& x) { return at::linalg_det(spd(x[0])); },
                          {{square, "S0"}},
                          "S0"},
                         {"solve",
                          [&](const Tensors& x) { return at::linalg_solve(spd(x[0]), x[1]); },
                          {{square, "S0"}, {{4, 3, 2}, "S0"}},
                          "S0",
                          check},
                         {"eigenvalues",
                          [&](const Tensors& x) { return at::linalg_eigvalsh(spd(x[0])); },
                          {{square, "S0"}},
                          "S0"},
                         {"singular values",
                          [](const Tensors& x) { return at::linalg_svdvals(x[0]); },
                          {{square, "S0"}},
                          "S0"},
                         {"qr",
                          [](const Tensors& x) { return std::get<1>(at::linalg_qr(x[0])); },
                          {{square, "S0"}},
                          "S0"},
                     });
}

TEST(QuietFamilies, RandomNumbersAndCells) {
  WatchedCall draw = rows("uniform", [](const auto& x) { return at::rand_like(x) * 0 + x; });
  check_calls(kMesh,
              {
                  draw,
                  {"lstm_cell of a batch",
                   [](const Tensors& x) {
                     return std::get<0>(at::lstm_cell(x[0], {x[1], x[2]}, x[3], x[4]));
                   },
                   {{{8, 5}, "S0"}, {{8, 3}, "S0"}, {{8, 3}, "S0"}, {{12, 5}, "R"}, {{12, 3}, "R"}},
                   "S0"},
                  {"gru_cell of a batch",
                   [](const Tensors& x) { return at::gru_cell(x[0], x[1], x[2], x[3]); },
                   {{{8, 5}, "S0"}, {{8, 3}, "S0"}, {{9, 5}, "R"}, {{9, 3}, "R"}},
                   "S0"},
              });
}

}  // namespace quiet_families_test
}  // namespace tessera::test
