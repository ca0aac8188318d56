#include "tessera/parallel/context/context_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

/// Attention over a sharded sequence equals attention on whole tensors, forward and backward.
namespace tessera {
namespace context_parallel_test {

struct Case {
  std::string mesh = "cp=4";
  std::string placements = "S2";
  int64_t batch = 2;
  int64_t heads = 4;
  int64_t key_heads = 4;
  int64_t rows = 16;
  int64_t keys = 0;  // 0: as many as rows
  int64_t width = 8;
  int64_t value_width = 8;
  bool causal = false;
  bool balanced = false;
  std::vector<parallel::DocumentOffsets> documents = {};
  at::Tensor mask = {};  // by position
  MaskFunction mask_function = {};
  AttentionKernel kernel = AttentionKernel::automatic;
  at::ScalarType dtype = at::kDouble;

  int64_t key_rows() const { return keys == 0 ? rows : keys; }
};

struct Inputs {
  at::Tensor query, key, value, grad;
};

Inputs inputs_of(const Case& c) {
  const auto make = [&](std::vector<int64_t> shape, uint64_t seed) {
    return (test::test_numbers(shape, seed) * 3).to(c.dtype);
  };
  return {make({c.batch, c.heads, c.rows, c.width}, 1),
          make({c.batch, c.key_heads, c.key_rows(), c.width}, 2),
          make({c.batch, c.key_heads, c.key_rows(), c.value_width}, 3),
          make({c.batch, c.heads, c.rows, c.value_width}, 4)};
}

/// All that masks, as one bool mask of the whole sequence.
at::Tensor whole_mask(const Case& c) {
  at::Tensor mask = at::ones({c.batch, 1, c.rows, c.key_rows()}, at::kBool);
  if (c.causal) mask = mask.tril();
  if (c.mask.defined()) mask = mask.logical_and(c.mask);
  if (c.mask_function) {
    mask = mask.logical_and(
        c.mask_function(at::arange(c.rows).unsqueeze(1), at::arange(c.key_rows()).unsqueeze(0)));
  }
  for (int64_t b = 0; b < c.batch && !c.documents.empty(); ++b) {
    const auto& offsets = c.documents[c.documents.size() == 1 ? 0 : static_cast<size_t>(b)];
    at::Tensor same = at::zeros({c.rows, c.rows}, at::kBool);
    for (size_t d = 0; d + 1 < offsets.size(); ++d) {
      const int64_t length = offsets[d + 1] - offsets[d];
      same.narrow(0, offsets[d], length).narrow(1, offsets[d], length).fill_(true);
    }
    mask[b].logical_and_(same);
  }
  return mask;
}

/// Output and gradients of queries, keys and values.
std::vector<at::Tensor> plain(const Case& c) {
  Inputs in = inputs_of(c);
  for (at::Tensor* t : {&in.query, &in.key, &in.value}) t->set_requires_grad(true);
  const at::Tensor out = at::scaled_dot_product_attention(
      in.query, in.key, in.value, whole_mask(c), 0.0, false, std::nullopt, /*enable_gqa=*/true);
  out.backward(in.grad);
  return {out.detach(), in.query.grad(), in.key.grad(), in.value.grad()};
}

SequenceOrder order_of(const Case& c, const DeviceMesh& mesh) {
  return c.balanced ? SequenceOrder::head_tail(c.rows, mesh.size(mesh.axis("cp")))
                    : SequenceOrder();
}

std::vector<at::Tensor> sharded(const Case& c, ContextMethod method) {
  const DeviceMesh mesh = comm::init_device_mesh(c.mesh);
  const SequenceOrder order = order_of(c, mesh);
  const auto placements = parse_placements(c.placements);
  const auto put = [&](const at::Tensor& t) {
    return distribute_tensor(reorder_sequence(t, 2, order), mesh, placements,
                             {.source = std::nullopt});
  };
  const Inputs in = inputs_of(c);
  at::Tensor q = put(in.query).set_requires_grad(true);
  at::Tensor k = put(in.key).set_requires_grad(true);
  at::Tensor v = put(in.value).set_requires_grad(true);
  AttentionOptions attention{.is_causal = c.causal, .mask_function = c.mask_function};
  if (c.mask.defined()) {
    attention.mask = c.mask.size(-2) > 1 ? reorder_sequence(c.mask, -2, order) : c.mask;
    if (c.mask.size(-1) > 1) attention.mask = reorder_sequence(attention.mask, -1, order);
  }
  const at::Tensor out = context_parallel_attention(
      q, k, v, attention,
      {.method = method, .order = order, .documents = c.documents, .kernel = c.kernel});
  EXPECT_EQ(sharding(out).placements_text(), sharding(q).placements_text());
  out.backward(put(in.grad));
  std::vector<at::Tensor> results;
  for (const at::Tensor& t : {out.detach(), q.grad(), k.grad(), v.grad()}) {
    results.push_back(restore_sequence(full_tensor(t), 2, order));
  }
  return results;
}

void expect_equal(const Case& c, ContextMethod method, double tolerance = 1e-9) {
  const auto want = plain(c);
  const int ranks = DeviceMesh::parse(c.mesh).size();
  test::run_ranks(ranks, [&](int) {
    const auto got = sharded(c, method);
    const char* names[] = {"output", "gradient of queries", "gradient of keys",
                           "gradient of values"};
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(at::allclose(got[i], want[i], tolerance, tolerance))
          << names[i] << " by " << context_method_name(method) << " differs by "
          << (got[i] - want[i]).abs().max().item<double>();
    }
  });
}

constexpr ContextMethod kAll[] = {ContextMethod::ring, ContextMethod::all_gather,
                                  ContextMethod::all_to_all};

void expect_equal(const Case& c) {
  for (const ContextMethod method : kAll) expect_equal(c, method);
}

TEST(ContextParallel, EqualsFullAttention) { expect_equal(Case{}); }

TEST(ContextParallel, CausalEqualsFullAttention) { expect_equal(Case{.causal = true}); }

TEST(ContextParallel, BalancedCausalEqualsFullAttention) {
  expect_equal(Case{.rows = 32, .causal = true, .balanced = true});
  expect_equal(Case{.rows = 32, .balanced = true});
}

TEST(ContextParallel, RowsNeedNotDivideEvenly) {
  for (const bool balanced : {false, true}) {
    for (const int64_t rows : {13, 5, 3, 1}) {  // 3 and 1: ranks without rows
      expect_equal(Case{.rows = rows, .causal = true, .balanced = balanced});
    }
  }
}

TEST(ContextParallel, QueriesAndKeysMayDifferInNumber) {
  expect_equal(Case{.rows = 6, .keys = 14});
  expect_equal(Case{.rows = 6, .keys = 14, .causal = true});
  expect_equal(Case{.rows = 14, .keys = 6, .causal = true});
}

TEST(ContextParallel, GroupsOfQueriesShareHeadsOfKeys) {
  expect_equal(Case{.heads = 8, .key_heads = 2, .causal = true, .balanced = true});
  expect_equal(Case{.heads = 8, .key_heads = 1});
  expect_equal(Case{.heads = 6, .key_heads = 3});
  expect_equal(Case{.heads = 3, .key_heads = 1});  // all_to_all: a rank without heads
}

TEST(ContextParallel, ValuesMayHaveAnotherWidth) {
  expect_equal(Case{.width = 6, .value_width = 10, .causal = true});
  expect_equal(Case{.width = 10, .value_width = 3});
}

TEST(ContextParallel, OtherAxesMayShardBatchAndHeads) {
  expect_equal(Case{.mesh = "dp=2,cp=2", .placements = "S0,S2", .causal = true});
  expect_equal(Case{.mesh = "tp=2,cp=2", .placements = "S1,S2", .causal = true, .balanced = true});
  expect_equal(Case{.mesh = "cp=2,tp=2", .placements = "S2,S1", .causal = true});
  expect_equal(Case{.mesh = "dp=2,cp=2", .placements = "R,S2", .causal = true});
}

TEST(ContextParallel, TwoAxesMayShardTheSequence) {
  expect_equal(Case{.mesh = "node=2,cp=2", .placements = "S2,S2", .causal = true});
}

TEST(ContextParallel, OneRankIsPlainAttention) {
  expect_equal(Case{.mesh = "cp=1", .causal = true, .balanced = true});
}

TEST(ContextParallel, DocumentsAttendWithinThemselves) {
  for (const bool causal : {false, true}) {
    for (const bool balanced : {false, true}) {
      expect_equal(Case{.causal = causal, .balanced = balanced, .documents = {{0, 3, 4, 11, 16}}});
      expect_equal(Case{
          .causal = causal, .balanced = balanced, .documents = {{0, 3, 4, 11, 16}, {0, 9, 16}}});
    }
  }
  expect_equal(Case{.mesh = "dp=2,cp=2",
                    .placements = "S0,S2",
                    .causal = true,
                    .documents = {{0, 3, 4, 11, 16}, {0, 9, 16}}});
}

TEST(ContextParallel, DocumentsHaveAnOrderOfTheirOwn) {
  const Case c{.causal = true, .documents = {{0, 7, 16}}};
  const auto want = plain(c);
  test::run_ranks(4, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("cp=4");
    const std::vector<int64_t> lengths = {7, 9};
    const auto order = SequenceOrder::head_tail_of_documents(lengths, 4);
    const Inputs in = inputs_of(c);
    const auto put = [&](const at::Tensor& t) {
      return distribute_tensor(reorder_sequence(t, 2, order), mesh, {Shard(2)});
    };
    const at::Tensor out =
        context_parallel_attention(put(in.query), put(in.key), put(in.value), {.is_causal = true},
                                   {.order = order, .documents = c.documents});
    EXPECT_TRUE(at::allclose(restore_sequence(full_tensor(out), 2, order), want[0], 1e-9, 1e-9));
  });
}

TEST(ContextParallel, MasksOfKeysAndOfPairsApply) {
  const at::Tensor padding = test::test_numbers({2, 1, 1, 16}, 9).gt(-0.4);
  at::Tensor pairs = test::test_numbers({16, 16}, 8).gt(-0.2);
  pairs[3].fill_(false);  // a query without any key
  for (const bool causal : {false, true}) {
    expect_equal(Case{.causal = causal, .balanced = true, .mask = padding});
    for (const auto method : {ContextMethod::ring, ContextMethod::all_gather}) {
      expect_equal(Case{.causal = causal, .balanced = true, .mask = pairs}, method);
    }
  }
  Case c{.mask = pairs};
  test::run_ranks(4,
                  [&](int) { EXPECT_THROW(sharded(c, ContextMethod::all_to_all), NotSupported); });
}

TEST(ContextParallel, AMaskMayBeAFunctionOfPositions) {
  const MaskFunction window = [](const at::Tensor& q, const at::Tensor& k) {
    return (q - k).abs().lt(4);
  };
  expect_equal(Case{.balanced = true, .mask_function = window});
  expect_equal(Case{.causal = true, .mask_function = window});
  const MaskFunction of_keys = [](const at::Tensor&, const at::Tensor& k) {
    return k.remainder(5).lt(4);
  };
  expect_equal(Case{.documents = {{0, 5, 16}, {0, 9, 16}}, .mask_function = of_keys});
}

TEST(ContextParallel, TheMathKernelIsEqualToo) {
  expect_equal(Case{.heads = 4, .key_heads = 2, .causal = true, .kernel = AttentionKernel::math});
  const at::Tensor padding = test::test_numbers({2, 1, 1, 16}, 9).gt(-0.4);
  expect_equal(Case{.mask = padding, .kernel = AttentionKernel::math});
}

TEST(ContextParallel, SmallerDtypesAreSummedInFloat) {
  for (const ContextMethod method : kAll) {
    expect_equal(Case{.rows = 32, .causal = true, .balanced = true, .dtype = at::kFloat}, method,
                 1e-4);
    expect_equal(Case{.rows = 32, .causal = true, .balanced = true, .dtype = at::kBFloat16}, method,
                 0.15);
  }
}

TEST(ContextParallel, SendsWhatItsMethodSays) {
  const Case c{.rows = 32, .causal = true};
  test::run_ranks(4, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("cp=4");
    const auto put = [&](const at::Tensor& t) {
      return distribute_tensor(t, mesh, {Shard(2)}, {.source = std::nullopt});
    };
    const Inputs in = inputs_of(c);
    const auto run = [&](ContextMethod method, const char* forward, const char* backward) {
      at::Tensor q = put(in.query).set_requires_grad(true);
      at::Tensor k = put(in.key).set_requires_grad(true);
      at::Tensor v = put(in.value).set_requires_grad(true);
      const at::Tensor grad = put(in.grad);
      comm::Recorder recorder(*comm::current_world());
      const at::Tensor out =
          context_parallel_attention(q, k, v, {.is_causal = true}, {.method = method});
      EXPECT_EQ(comm::expect_comm(recorder, forward), "");
      recorder.clear();
      out.backward(grad);
      EXPECT_EQ(comm::expect_comm(recorder, backward), "");
    };
    run(ContextMethod::ring, "3 all_to_all", "7 all_to_all");
    run(ContextMethod::all_gather, "2 all_gather", "2 reduce_scatter");
    run(ContextMethod::all_to_all, "4 all_to_all", "4 all_to_all");
  });
}

TEST(ContextParallel, InItsScopePlainCallsRotate) {
  const Case c{.rows = 24, .causal = true, .balanced = true};
  const auto want = plain(c);
  test::run_ranks(4, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("cp=4");
    const SequenceOrder order = order_of(c, mesh);
    const Inputs in = inputs_of(c);
    const auto put = [&](const at::Tensor& t) {
      return distribute_tensor(reorder_sequence(t, 2, order), mesh, {Shard(2)});
    };
    at::Tensor q = put(in.query).set_requires_grad(true);
    const at::Tensor k = put(in.key), v = put(in.value);
    comm::Recorder recorder(*comm::current_world());
    at::Tensor out;
    {
      const ContextParallel scope("cp", {.order = order});
      out = at::scaled_dot_product_attention(q, k, v, {}, 0.0, true);
      EXPECT_THROW(at::scaled_dot_product_attention(q, k, v, {}, 0.5, true), NotSupported);
    }
    EXPECT_EQ(comm::expect_comm(recorder, "3 all_to_all"), "");
    EXPECT_TRUE(
        at::allclose(restore_sequence(full_tensor(out.detach()), 2, order), want[0], 1e-9, 1e-9));
    out.backward(put(in.grad));
    EXPECT_TRUE(
        at::allclose(restore_sequence(full_tensor(q.grad()), 2, order), want[1], 1e-9, 1e-9));
    EXPECT_EQ(ContextParallel::current(), nullptr);
    const auto gathered = [](const at::Tensor& t) { return redistribute(t, {Replicate()}); };
    {  // rows that were gathered are masked by position too
      const ContextParallel scope("cp", {.order = order});
      out = at::scaled_dot_product_attention(gathered(q.detach()), gathered(k), gathered(v), {},
                                             0.0, true);
    }
    EXPECT_TRUE(at::allclose(restore_sequence(full_tensor(out), 2, order), want[0], 1e-9, 1e-9));
  });
}

TEST(ContextParallel, RanksOutsideTheMeshTakePartWithNothing) {
  const Case c{.mesh = "cp=2@0,2", .causal = true};
  const auto want = plain(c);
  test::run_ranks(3, [&](int rank) {
    for (const ContextMethod method : kAll) {
      const DeviceMesh mesh = comm::init_device_mesh(c.mesh);
      const Inputs in = inputs_of(c);
      const auto put = [&](const at::Tensor& t) {
        return distribute_tensor(t, mesh, {Shard(2)}, {.source = std::nullopt});
      };
      at::Tensor q = put(in.query).set_requires_grad(true);
      const at::Tensor out = context_parallel_attention(q, put(in.key), put(in.value),
                                                        {.is_causal = true}, {.method = method});
      EXPECT_EQ(out.sizes(), want[0].sizes());
      out.backward(put(in.grad));
      if (rank == 1) {
        EXPECT_EQ(to_local(out).numel(), 0);
        continue;
      }
      EXPECT_TRUE(at::allclose(full_tensor(out.detach()), want[0], 1e-9, 1e-9));
      EXPECT_TRUE(at::allclose(full_tensor(q.grad()), want[1], 1e-9, 1e-9));
    }
  });
}

}  // namespace context_parallel_test
}  // namespace tessera
