// Views that need elements of other ranks behave as views: the owner of what is written writes it,
// and what is written elsewhere is seen.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <functional>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/policy.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace tessera {
namespace gathered_views_test {

using test::test_numbers;
using testing::failures;
using testing::run_processes;
using testing::Scenario;

/// Writes to views of `y`, a 6x5x4 tensor; `v` is another one that fits the last two dims.
struct Write {
  const char* what;
  std::function<void(const at::Tensor& y, const at::Tensor& v)> write;
  bool differentiable = true;
};

const std::vector<Write>& writes() {
  using T = at::Tensor;
  static const std::vector<Write> all = {
      {"a row", [](const T& y, const T&) { y.select(0, 3).zero_(); }},
      {"the last row", [](const T& y, const T&) { y.select(0, -1).fill_(2); }},
      {"a copy", [](const T& y, const T& v) { y.select(0, 2).copy_(v); }},
      {"a column", [](const T& y, const T&) { y.select(1, 2).mul_(3); }},
      {"the last dim", [](const T& y, const T&) { y.select(2, 1).add_(1); }},
      {"a slice", [](const T& y, const T&) { y.slice(0, 1, 5, 2).mul_(3); }},
      {"narrow", [](const T& y, const T&) { y.narrow(1, 1, 3).mul_(3); }},
      {"a diagonal", [](const T& y, const T&) { y.diagonal(0, 0, 1).mul_(2); }},
      {"an offset diagonal", [](const T& y, const T&) { y.diagonal(1, 1, 2).add_(2); }},
      {"a chain", [](const T& y, const T&) { y.select(0, 4).select(0, 1).slice(0, 1).mul_(5); }},
      {"a chain of gathers", [](const T& y, const T&) { y.select(1, 1).select(1, 2).mul_(5); }},
      {"transposed", [](const T& y, const T&) { y.transpose(0, 2).select(0, 1).t().mul_(5); }},
      {"unsqueezed", [](const T& y, const T&) { y.select(0, 1).unsqueeze(0).mul_(4); }},
      {"each of unbind",
       [](const T& y, const T&) {
         double by = 2;
         for (const T& part : y.unbind(0)) part.mul_(by++);
       },
       false},
      {"the last of a split",
       [](const T& y, const T&) {
         y.transpose(0, 1).reshape({30, 4}).split(7)[4].mul_(3);
       },
       false},
      {"a flat view", [](const T& y, const T&) { y.view({120}).slice(0, 7, 99).mul_(3); }},
      {"squeezed", [](const T& y, const T&) { y.slice(0, 3, 4).squeeze(0).mul_(3); }},
      {"each of a list",
       [](const T& y, const T& row) {
         const T v = row.detach().clone();
         std::vector<T> others;
         for (const T& part : y.unbind(1)) others.push_back(part);
         others.push_back(v);
         at::_foreach_mul_(others, 2);
       },
       false},
      {"two rows, one after the other",
       [](const T& y, const T&) {
         const T a = y.select(0, 1), b = y.select(0, 2);
         a.mul_(2);
         b.mul_(3);
         a.add_(1);
       }},
      {"two that overlap",
       [](const T& y, const T&) {
         const T row = y.select(0, 1), column = y.select(1, 3);
         row.mul_(2);
         column.add_(1);
         row.mul_(3);
       }},
      {"the base in between",
       [](const T& y, const T&) {
         const T row = y.select(0, 1);
         y.add_(1);
         row.mul_(3);
         y.mul_(2);
         row.sub_(3);
       }},
      {"a view of the base in between",
       [](const T& y, const T&) {
         const T row = y.select(0, 1), part = y.slice(0, 0, 3);
         part.add_(1);
         row.mul_(2);
       }},
      {"with what it reads", [](const T& y, const T&) { y.select(0, 0).copy_(y.select(0, 5)); }},
      {"out=",
       [](const T& y, const T& v) {
         T row = y.select(0, 2);
         at::add_out(row, v, v);
       },
       false},
      {"where a mask says", [](const T& y, const T& v) { y.select(0, 2).masked_fill_(v > 0, 7); }},
      {"index_put",
       [](const T& y, const T&) {
         y.select(1, 2).index_put_({at::arange(2)}, at::full({}, 3.0, at::kDouble));
       }},
  };
  return all;
}

at::Tensor full_value() { return test_numbers({6, 5, 4}, 1); }
at::Tensor full_row() { return test_numbers({5, 4}, 2); }

void check_values(const DeviceMesh& mesh, const char* placements) {
  const std::vector<Placement> row(static_cast<size_t>(mesh.ndim()));
  for (const Write& write : writes()) {
    at::Tensor expected = full_value();
    write.write(expected, full_row());
    const at::Tensor y = distribute_tensor(full_value(), mesh, parse_placements(placements));
    const ImplicitReplication plain_indexes;
    write.write(y, distribute_tensor(full_row(), mesh, row));
    EXPECT_TRUE(at::equal(full_tensor(y), expected)) << write.what << ", " << placements;
    EXPECT_EQ(sharding(y).placements_text(), placements);
  }
}

/// The same with gradients: of what was there before, and of what is written.
void check_gradients(const DeviceMesh& mesh, const char* placements) {
  const std::vector<Placement> row(static_cast<size_t>(mesh.ndim()));
  const at::Tensor weight = test_numbers({6, 5, 4}, 3);
  const auto run = [&](const Write& write, at::Tensor x, at::Tensor v, const at::Tensor& w) {
    x.requires_grad_();
    v.requires_grad_();
    const at::Tensor y = x * 1;
    write.write(y, v);
    (y * y * w).sum().backward();
    return std::vector<at::Tensor>{y.detach(), x.grad(), v.grad()};
  };
  for (const Write& write : writes()) {
    if (!write.differentiable) continue;
    const auto expected = run(write, full_value(), full_row(), weight);
    const ImplicitReplication plain_indexes;
    const auto got = run(write, distribute_tensor(full_value(), mesh, parse_placements(placements)),
                         distribute_tensor(full_row(), mesh, row),
                         distribute_tensor(weight, mesh, parse_placements(placements)));
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(got[i].defined(), expected[i].defined()) << write.what;
      if (!expected[i].defined()) continue;
      EXPECT_TRUE(at::allclose(full_tensor(got[i]), expected[i]))
          << write.what << ", " << placements << ", tensor " << i;
    }
  }
}

void check_on(const char* text, const std::vector<const char*>& all) {
  test::run_ranks(DeviceMesh::parse(text).size(), [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh(text);
    for (const char* placements : all) {
      check_values(mesh, placements);
      check_gradients(mesh, placements);
    }
  });
}

TEST(GatheredViews, AreWrittenByTheOwner) {
  check_on("tp=4", {"S0", "S1", "S2", "R"});  // uneven, and even
}

TEST(GatheredViews, AreWrittenByTheOwnerOnTwoAxes) {
  check_on("dp=2,tp=2", {"S0,S0", "S0,S1", "R,S0", "S1,S0"});
}

TEST(GatheredViews, AreWrittenByTheOwnerWhereRanksHoldNothing) { check_on("tp=7", {"S0", "S2"}); }

const Scenario kProcesses("gathered views on two", [] {
  const DeviceMesh mesh = comm::init_device_mesh("tp=2");
  for (const char* placements : {"S0", "S1"}) {
    check_values(mesh, placements);
    check_gradients(mesh, placements);
  }
});

TEST(GatheredViews, AreWrittenByTheOwnerBetweenProcesses) {
  EXPECT_EQ(failures(run_processes(kProcesses, {.size = 2})), "");
}

/// A cache of keys that is sharded along its positions: one row travels at most.
TEST(GatheredViews, OfOneRowMoveOneRow) {
  test::run_ranks(4, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=4");
    const at::Tensor cache = distribute_tensor(at::zeros({64, 8}), mesh, {Shard(0)});
    const at::Tensor key = distribute_tensor(at::ones({8}), mesh, {Replicate()});
    comm::Recorder recorder(*comm::current_world());
    for (int64_t i : {5, 40}) cache.select(0, i).copy_(key);
    EXPECT_LE(recorder.bytes(), 2 * 4 * 8 * static_cast<int64_t>(sizeof(float)));
    EXPECT_EQ(full_tensor(cache).sum().item<double>(), 16);
  });
}

/// What was gathered before a write is not what is read after it.
TEST(GatheredViews, SeeWritesToTheirBase) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    for (const bool inference : {false, true}) {
      const c10::InferenceMode mode(inference);
      const at::Tensor y = distribute_tensor(test_numbers({4, 3}, 1), mesh, {Shard(0)});
      const at::Tensor row = y.select(0, 3), again = row.unsqueeze(0), data = row.detach();
      y.zero_();
      EXPECT_EQ(row.sum().item<double>(), 0);
      y.add_(1);
      EXPECT_EQ(full_tensor(again).sum().item<double>(), 3);
      y.slice(0, 2).add_(1);
      EXPECT_EQ(to_local(redistribute(row, {Replicate()})).sum().item<double>(), 6);
      y.add_(1);
      const at::Tensor part = to_local(row);
      EXPECT_TRUE((part == 3).all().item<bool>());
      data.zero_();
      EXPECT_EQ(full_tensor(y).sum().item<double>(), 3 * (2 + 2 + 3));
    }
  });
}

TEST(GatheredViews, DrawRandomNumbersIntoTheirBase) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor y = distribute_tensor(at::zeros({4, 3}), mesh, {Shard(0)});
    y.select(0, 3).uniform_(1, 2);
    EXPECT_TRUE((full_tensor(y)[3] >= 1).all().item<bool>());
    EXPECT_EQ(full_tensor(y).slice(0, 0, 3).sum().item<double>(), 0);
  });
}

/// In one call the order of writes to overlapping memory counts, and the copies do not see it.
TEST(GatheredViews, AreNotWrittenTogetherWithTheirBase) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor y = distribute_tensor(at::ones({4, 3}), mesh, {Shard(0)});
    EXPECT_THROW(at::_foreach_mul_(std::vector<at::Tensor>{y, y.select(0, 1)}, 3), NotSupported);
    EXPECT_THROW(at::_foreach_mul_(std::vector<at::Tensor>{y.select(0, 1), y.select(1, 0)}, 3),
                 NotSupported);
    EXPECT_EQ(full_tensor(y).sum().item<double>(), 12);
  });
}

/// A conjugate, which libtorch computes when it is read, is a copy that behaves as a view.
TEST(GatheredViews, OfConjugatesSeeWritesAndPassThemOn) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor full = at::complex(test_numbers({4, 3}, 1), test_numbers({4, 3}, 2));
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
    const auto same_after = [&](const auto& write) {
      const at::Tensor plain = full.clone();
      const at::Tensor sharded = x.clone();
      const std::array of_plain = {plain.conj(), at::imag(plain.conj()), plain.conj().select(0, 1)};
      const std::array of_sharded = {sharded.conj(), at::imag(sharded.conj()),
                                     sharded.conj().select(0, 1)};
      write(plain);
      write(sharded);
      EXPECT_TRUE(at::allclose(full_tensor(sharded), plain));
      for (size_t i = 0; i < of_plain.size(); ++i) {
        EXPECT_TRUE(
            at::allclose(full_tensor(of_sharded[i]), of_plain[i].resolve_conj().resolve_neg()))
            << i;
      }
    };
    same_after([](const at::Tensor& t) { t.mul_(2); });
    same_after([](const at::Tensor& t) { at::imag(t).select(0, 2).fill_(7); });
    same_after([](const at::Tensor& t) { t.conj().add_(1); });
    same_after([](const at::Tensor& t) { at::imag(t.conj()).select(1, 0).add_(1); });
    same_after([](const at::Tensor& t) { t.conj().conj().select(0, 3).add_(1); });
    same_after([](const at::Tensor& t) { t.conj().resolve_conj().add_(1); });
    same_after([](const at::Tensor& t) { at::imag(t.conj()).resolve_neg().add_(1); });
    same_after([](const at::Tensor& t) { at::real(t.conj()).resolve_neg().add_(1); });
  });
}

/// A derivative that is written column by column, as libtorch writes some of its own.
struct ByColumns : torch::autograd::Function<ByColumns> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    at::Tensor out = at::zeros_like(grads[0]);
    for (int64_t i = 0; i < out.size(1); ++i) {
      out.select(1, i).copy_(grads[0].select(1, i));  // gathered
      out.select(1, i).unsqueeze(0).mul_(3);          // a view of one, read and written
    }
    const std::vector<at::Tensor> parts = out.unbind(1);
    parts[1].select(0, 2).add_(100);  // one of a list, and a number of it
    return {out};
  }
};

TEST(GatheredViews, OfDerivativesAreWrittenThrough) {
  const at::Tensor full = test_numbers({4, 6}, 1), grad = test_numbers({4, 6}, 2);
  at::Tensor expected = grad * 3;
  expected[2][1] += 100;
  test::run_ranks(4, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=4");
    for (const Placement& placement : {Shard(1), Shard(0), Replicate()}) {
      at::Tensor x = distribute_tensor(full, mesh, {placement}).requires_grad_();
      ByColumns::apply(x).backward(distribute_tensor(grad, mesh, {placement}));
      EXPECT_TRUE(at::equal(full_tensor(x.grad()), expected)) << placement.to_text();
      x.mutable_grad().mul_(2);  // what autograd keeps is not a view
      EXPECT_TRUE(at::equal(full_tensor(x.grad()), expected * 2));
    }
  });
}

}  // namespace gathered_views_test
}  // namespace tessera
