#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <random>

#include "tessera/base/text.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"
#include "tests/support/watched_call.h"

/// gather, index_select and what adds by index, along a dim that is sharded: nothing but the result
/// is brought together.
namespace tessera::test {
namespace look_ups_test {

using comm::init_device_mesh;
using test::run_ranks;

TEST(LookUps, AlongAShardedDimSendNothing) {
  for (const int64_t rows : {8, 7, 5, 3}) {  // even, uneven, with ranks that hold nothing
    check_calls("tp=4", {{"gather",
                          [](const Tensors& x) { return x[0].gather(0, x[1]); },
                          {{{rows, 3}, "S0"}, {{2, 3}, "R", rows}},
                          "P(sum)",
                          "nothing",
                          "..."},
                         {"index_select",
                          [](const Tensors& x) { return x[0].index_select(-2, x[1]); },
                          {{{rows, 3}, "S0"}, {{3}, "R", rows}},
                          "P(sum)",
                          "nothing",
                          "..."},
                         {"scatter_add",
                          [](const Tensors& x) { return x[0].scatter_add(0, x[1], x[2]); },
                          {{{rows, 3}, "S0"}, {{9, 3}, "R", rows}, {{9, 3}, "R"}},
                          "S0",
                          "nothing",
                          "..."},
                         {"index_add",
                          [](const Tensors& x) { return x[0].index_add(0, x[1], x[2], 0.5); },
                          {{{rows, 3}, "S0"}, {{9}, "R", rows}, {{9, 3}, "R"}},
                          "S0",
                          "nothing",
                          "..."}});
  }
  check_calls("dp=2,tp=2", {{"gather of rows sharded twice",
                             [](const Tensors& x) { return x[0].gather(0, x[1]); },
                             {{{7, 3}, "S0,S0"}, {{2, 3}, "R,R", 7}},
                             "P(sum),P(sum)",
                             "nothing",
                             "..."},
                            {"gather beside a sharded batch",
                             [](const Tensors& x) { return x[0].gather(1, x[1]); },
                             {{{6, 9}, "S0,S1"}, {{6, 1}, "S0,R", 9}},
                             "S0,P(sum)",
                             "nothing",
                             "..."},
                            {"gather of sharded indexes",
                             [](const Tensors& x) { return x[0].gather(1, x[1]); },
                             {{{6, 9}, "R,S1"}, {{6, 4}, "S1,R", 9}},
                             "S1,P(sum)",
                             "nothing",
                             "..."}});
}

TEST(LookUps, OfMoreThanThereIsBringTheInputTogether) {
  check_call("tp=2", {"gather",
                      [](const Tensors& x) { return x[0].gather(0, x[1]); },
                      {{{4}, "S0"}, {{100}, "R", 4}},
                      "R",
                      "1 all_gather on tp",
                      "..."});
}

/// Words out of a vocabulary that no rank holds whole, neither forward nor backward.
TEST(LookUps, LeaveTheGradientOfAShardedDimSharded) {
  const at::Tensor full = at::randn({5, 64});
  const at::Tensor plain = full.clone().requires_grad_();
  const at::Tensor wanted = at::arange(5).unsqueeze(1) * 13;
  plain.gather(1, wanted).exp().mean().backward();
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor logits = spread(full, mesh, "S1").requires_grad_();
    const at::Tensor target = spread(wanted, mesh, "R");
    comm::Recorder recorder(*comm::current_world());
    redistribute(logits.gather(1, target), {Replicate()}).exp().mean().backward();
    EXPECT_EQ(comm::expect_comm(recorder, "1 all_reduce on tp, 0 implicit"), "");
    EXPECT_EQ(recorder.bytes(), 5 * 4) << "what was found, once";
    EXPECT_EQ(placements_text(placements(logits.grad())), "S1");
    EXPECT_TRUE(at::allclose(full_tensor(logits.grad()), plain.grad()));
  });
}

TEST(LookUps, RefuseIndexesThatDoNotExist) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor table = spread(at::ones({6, 2}), mesh, "S0");
    for (const int64_t wrong : {6, -1}) {
      const at::Tensor index = spread(at::full({1}, wrong, at::kLong), mesh, "R");
      const auto says_so = [&](const auto& call) {
        try {
          call();
          ADD_FAILURE() << "no error for " << wrong;
        } catch (const c10::Error& e) {
          EXPECT_NE(std::string(e.what()).find("out of range for dim 0 of size 6"),
                    std::string::npos)
              << e.what();
        }
      };
      says_so([&] { table.index_select(0, index); });
      says_so([&] { at::embedding(table, index); });
      says_so([&] { table.gather(0, at::stack({index, index}, 1)); });
      says_so([&] { table.clone().index_add_(0, index, table.narrow(0, 0, 1)); });
    }
  });
}

struct Drawn {
  at::Tensor self, index, source;
  int64_t dim = 0;
  std::string placements[3];
};

std::string draw_placements(const at::Tensor& of, int axes, std::mt19937& rng) {
  std::string out;
  for (int axis = 0; axis < axes; ++axis) {
    const auto pick = static_cast<int64_t>(rng() % static_cast<uint64_t>(of.dim() + 1));
    out += (out.empty() ? "" : ",") + (pick == of.dim() ? "R" : "S" + std::to_string(pick));
  }
  return out;
}

/// A call as scatter_add and gather both take it: an index of other extents than the tensor, and a
/// source that may be larger than the index.
Drawn draw(at::ScalarType dtype, int axes, std::mt19937& rng) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(rng() % static_cast<uint64_t>(n));
  };
  Drawn out;
  const int64_t ndim = 1 + below(3);
  out.dim = below(ndim);
  std::vector<int64_t> self, index, source;
  for (int64_t d = 0; d < ndim; ++d) {
    self.push_back(1 + below(9));
    index.push_back(below(2) == 0 && d != out.dim ? self.back() : below(self.back() + 1));
    source.push_back(index.back() + (below(4) == 0 ? 1 : 0));
  }
  out.self = at::randint(0, 5, self).to(dtype);
  out.source = at::randint(0, 5, source).to(dtype);
  out.index = at::randint(0, self[static_cast<size_t>(out.dim)], index, at::kLong);
  const at::Tensor* tensors[] = {&out.self, &out.index, &out.source};
  for (int i = 0; i < 3; ++i) out.placements[i] = draw_placements(*tensors[i], axes, rng);
  if (below(2) == 0) out.dim -= ndim;
  return out;
}

at::Tensor sum_of(const at::Tensor& x) {
  return at::isComplexType(x.scalar_type()) ? at::real(x).sum() : x.sum();
}

void check_drawn(const Drawn& d, const DeviceMesh& mesh, const std::string& what) {
  const at::Tensor self = spread(d.self, mesh, d.placements[0]);
  const at::Tensor index = spread(d.index, mesh, d.placements[1]);
  const at::Tensor source = spread(d.source, mesh, d.placements[2]);
  const auto check = [&](const char* op, const at::Tensor& got, const at::Tensor& want) {
    EXPECT_TRUE(at::equal(full_tensor(got), want)) << op << what;
  };
  check("gather", self.gather(d.dim, index), d.self.gather(d.dim, d.index));
  at::Tensor plain = d.self.scatter_add(d.dim, d.index, d.source);
  check("scatter_add", self.scatter_add(d.dim, index, source), plain);
  check("scatter_add_", self.clone().scatter_add_(d.dim, index, source), plain);
  const at::Tensor rows = index.flatten(), plain_rows = d.index.flatten();
  const at::Tensor picked = d.self.index_select(d.dim, plain_rows);
  const at::Tensor found = self.index_select(d.dim, rows);
  check("index_select", found, picked);
  plain = d.self.index_add(d.dim, plain_rows, picked);
  check("index_add", self.index_add(d.dim, rows, found), plain);
  check("index_add_", self.clone().index_add_(d.dim, rows, found), plain);
  if (!at::isFloatingType(d.self.scalar_type()) && !at::isComplexType(d.self.scalar_type())) return;

  const auto gradients = [&](const at::Tensor& x, const at::Tensor& i, const at::Tensor& s) {
    const at::Tensor leaf = x.detach().requires_grad_();
    at::Tensor from = s.detach();  // libtorch's derivative wants it as large as the index
    for (int64_t k = 0; k < from.dim(); ++k) from = from.narrow(k, 0, i.size(k));
    from = from.detach().requires_grad_();
    const at::Tensor value = leaf.gather(d.dim, i).pow(2);
    const at::Tensor sums = leaf.scatter_add(d.dim, i, from).pow(2);
    return torch::autograd::grad({sum_of(value) + sum_of(sums)}, {leaf, from});
  };
  const auto want = gradients(d.self, d.index, d.source);
  const auto got = gradients(self, index, source);
  for (size_t g = 0; g < want.size(); ++g) check("gradient of ", got[g], want[g]);
}

TEST(LookUps, OfAnyTypeAndPlacementAreThePlainOnes) {
  constexpr unsigned kSeed = 71'204;
  std::mt19937 rng(kSeed);
  at::manual_seed(kSeed);
  const at::ScalarType types[] = {at::kFloat, at::kDouble,        at::kLong, at::kByte,
                                  at::kBool,  at::kComplexDouble, at::kHalf, at::kBFloat16};
  for (int round = 0; round < 160; ++round) {
    const std::string mesh_text = round % 2 == 0 ? "tp=4" : "dp=2,tp=2";
    const Drawn d = draw(types[rng() % std::size(types)], round % 2 + 1, rng);
    const std::string what =
        join_text(" of ", d.self.toString(), " ", shape_text(d.self.sizes()), " ", d.placements[0],
                  ", index ", shape_text(d.index.sizes()), " ", d.placements[1], ", source ",
                  shape_text(d.source.sizes()), " ", d.placements[2], ", dim ", d.dim, " on ",
                  mesh_text, ", round ", round, ", seed ", kSeed);
    run_ranks(4, [&](int) { check_drawn(d, init_device_mesh(mesh_text), what); });
  }
}

TEST(LookUps, HaveSecondDerivatives) {
  const at::Tensor full = at::randn({4, 6}, at::kDouble), wanted = at::randint(0, 6, {4, 3});
  const auto twice = [](const at::Tensor& x, const at::Tensor& index) {
    using torch::autograd::grad;
    const at::Tensor first =
        grad({x.gather(1, index).pow(3).sum()}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
    return grad({first.pow(2).sum()}, {x})[0];
  };
  const at::Tensor expected = twice(full.clone().requires_grad_(), wanted);
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = spread(full, mesh, "S1").requires_grad_();
    EXPECT_TRUE(at::allclose(full_tensor(twice(x, spread(wanted, mesh, "R"))), expected));
  });
}

}  // namespace look_ups_test
}  // namespace tessera::test
