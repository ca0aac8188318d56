// The forms in which ops come: in place, out=, lists, views, several results, sizes that only the
// data shows; and the kinds of tensors: without dims, complex, conjugated.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/policy.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"
#include "tests/support/training.h"

namespace tessera {
namespace forms_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::spread;
using test::test_numbers;

::testing::AssertionResult same(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor full = is_dtensor(got) ? full_tensor(got) : got;
  if (full.sizes() == expected.sizes() && full.scalar_type() == expected.scalar_type() &&
      at::allclose(full, expected, 1e-12, 1e-12)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << full << "\ninstead of\n" << expected;
}

/// Runs the body on four ranks for each placement of a 4x6 tensor on a mesh of two axes.
void for_each_layout(const std::function<void(const DeviceMesh&, const std::string&)>& body) {
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    for (const char* placements : {"R,R", "S0,R", "R,S1", "S0,S1", "S1,S0", "S0,S0", "S1,S1"}) {
      SCOPED_TRACE(placements);
      body(mesh, placements);
    }
  });
}

at::Tensor matrix(uint64_t seed = 1) { return test_numbers({4, 6}, seed); }

/// A tensor of partial sums: every rank holds an addend.
at::Tensor partial_sums(const DeviceMesh& mesh) {
  const at::Tensor left = spread(test_numbers({4, 4}, 5), mesh, "R,S1");
  const at::Tensor right = spread(test_numbers({4, 6}, 6), mesh, "R,S0");
  at::Tensor out = at::mm(left, right);
  EXPECT_EQ(sharding(out).placements_text(), "R,P(sum)");
  return out;
}

TEST(Forms, InPlaceOpsKeepThePlacement) {
  for_each_layout([](const DeviceMesh& mesh, const std::string& placements) {
    const auto check = [&](const char* name, const std::function<void(at::Tensor&)>& write) {
      at::Tensor expected = matrix().clone();
      write(expected);
      at::Tensor x = spread(matrix(), mesh, placements);
      write(x);
      EXPECT_TRUE(same(x, expected)) << name;
      EXPECT_EQ(sharding(x).placements_text(), placements) << name;
    };
    check("mul_", [](at::Tensor& t) { t.mul_(3).add_(1); });
    check("cumsum_", [](at::Tensor& t) { t.cumsum_(0).cumsum_(1); });
    check("sigmoid_", [](at::Tensor& t) { t.sigmoid_(); });
    check("fill_", [](at::Tensor& t) { t.fill_(2); });
    check("zero_", [](at::Tensor& t) { t.zero_(); });
    check("clamp_", [](at::Tensor& t) { t.clamp_(-0.1, 0.1); });
    check("triu_", [](at::Tensor& t) { t.triu_(); });
    check("masked_fill_", [](at::Tensor& t) { t.masked_fill_(t > 0, 9); });
    check("rows", [](at::Tensor& t) { t.narrow(0, 1, 2).fill_(7); });
    check("slice", [](at::Tensor& t) { t.narrow(1, 0, 6).mul_(2); });
    check("transposed", [](at::Tensor& t) { t.t().mul_(2); });
    const at::Tensor other = spread(matrix(2), mesh, "S1,R");
    at::Tensor x = spread(matrix(), mesh, placements);
    x.add_(other).copy_(x * 2);
    EXPECT_TRUE(same(x, (matrix() + matrix(2)) * 2));
    EXPECT_EQ(sharding(x).placements_text(), placements);
  });
}

TEST(Forms, WritesToPartialValuesKeepThemPartial) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const at::Tensor expected = at::mm(test_numbers({4, 4}, 5), test_numbers({4, 6}, 6));
    at::Tensor x = partial_sums(mesh);
    const auto pieces = x.chunk(2, 1);
    pieces[0].sigmoid_();
    const at::Tensor left = expected.narrow(1, 0, 3).sigmoid();
    EXPECT_EQ(sharding(pieces[0]).placements_text(), "R,P(sum)");
    EXPECT_TRUE(same(pieces[0], left));
    EXPECT_TRUE(same(x, at::cat({left, expected.narrow(1, 3, 3)}, 1)));
    x.add_(1);
    EXPECT_TRUE(same(x, at::cat({left, expected.narrow(1, 3, 3)}, 1) + 1));
  });
}

TEST(Forms, ForbiddenCommunicationCountsWhatMovesBack) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    at::Tensor x = partial_sums(mesh);
    at::Tensor out = spread(matrix(9), mesh, "S0,R");
    const at::Tensor columns = spread(matrix(), mesh, "R,S1");
    const CommPolicy explicit_only(ImplicitComm::forbid);
    comm::Recorder recorder(*comm::current_world());
    EXPECT_THROW(x.sigmoid_(), NotSupported);
    EXPECT_THROW(at::add_out(out, columns, columns), NotSupported);
    x.mul_(2);  // linear: every rank scales its addend
    EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "");
    const CommPolicy any(ImplicitComm::allow);
    EXPECT_TRUE(same(x, at::mm(test_numbers({4, 4}, 5), test_numbers({4, 6}, 6)) * 2));
    EXPECT_TRUE(same(out, matrix(9)));
  });
}

TEST(Forms, InPlaceViewsChangeTheTensorItself) {
  for_each_layout([](const DeviceMesh& mesh, const std::string& placements) {
    at::Tensor x = spread(matrix(), mesh, placements);
    const at::Tensor handle = x;
    x.t_();
    EXPECT_TRUE(same(handle, matrix().t()));
    x.unsqueeze_(1);
    EXPECT_TRUE(same(handle, matrix().t().unsqueeze(1)));
    x.transpose_(0, 2);
    EXPECT_TRUE(same(handle, matrix().t().unsqueeze(1).transpose(0, 2)));
    x.squeeze_(1);
    EXPECT_TRUE(same(handle, matrix()));
    x.mul_(2);
    EXPECT_TRUE(same(handle, matrix() * 2));
    EXPECT_EQ(sharding(handle).placements_text(), placements);
  });
}

TEST(Forms, OutTensorsAreWrittenWhereTheyLie) {
  for_each_layout([](const DeviceMesh& mesh, const std::string& placements) {
    const at::Tensor x = spread(matrix(), mesh, "S0,R");
    const at::Tensor w = spread(test_numbers({6, 6}, 3), mesh, "R,S1");
    at::Tensor out = spread(matrix(9), mesh, placements);
    at::add_out(out, x, x);
    EXPECT_TRUE(same(out, matrix() * 2));
    at::mm_out(out, x, w);
    EXPECT_TRUE(same(out, at::mm(matrix(), test_numbers({6, 6}, 3))));
    at::cumsum_out(out, x, 0);
    EXPECT_TRUE(same(out, matrix().cumsum(0)));
    EXPECT_EQ(sharding(out).placements_text(), placements);
    at::Tensor values = spread(at::zeros({4}, at::kDouble), mesh, "R,S0");
    at::Tensor places = spread(at::zeros({4}, at::kLong), mesh, "S0,R");
    at::max_out(values, places, x, 1);
    EXPECT_TRUE(same(values, std::get<0>(matrix().max(1))));
    EXPECT_TRUE(same(places, std::get<1>(matrix().max(1))));
    // Ops that another one runs for on the parts.
    at::squeeze_copy_out(out, x.unsqueeze(1));
    EXPECT_TRUE(same(out, matrix()));
    std::vector<at::Tensor> halves = {spread(at::zeros({4, 3}, at::kDouble), mesh, "R,S0"),
                                      spread(at::zeros({4, 3}, at::kDouble), mesh, placements)};
    at::split_copy_out(halves, x, 3, 1);
    EXPECT_TRUE(same(halves[0], matrix().narrow(1, 0, 3)));
    EXPECT_TRUE(same(halves[1], matrix().narrow(1, 3, 3)));
  });
}

TEST(Forms, ListsMayMixPlacements) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const std::vector<const char*> layouts = {"S0,R", "R,S1", "R,R", "S0,S0"};
    std::vector<at::Tensor> plain, sharded, others;
    for (size_t i = 0; i < layouts.size(); ++i) {
      plain.push_back(matrix(i));
      sharded.push_back(spread(plain[i], mesh, layouts[i]));
      others.push_back(spread(matrix(10 + i), mesh, layouts[layouts.size() - 1 - i]));
    }
    sharded.push_back(partial_sums(mesh));
    plain.push_back(at::mm(test_numbers({4, 4}, 5), test_numbers({4, 6}, 6)));
    others.push_back(spread(matrix(20), mesh, "S1,R"));
    const std::vector<at::Tensor> other_values = {matrix(10), matrix(11), matrix(12), matrix(13),
                                                  matrix(20)};
    const auto added = at::_foreach_add(sharded, others, 2);
    const auto norms = at::_foreach_norm(sharded, 2);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(same(added[i], plain[i] + 2 * other_values[i])) << i;
      EXPECT_TRUE(same(norms[i], plain[i].norm(2))) << i;
    }
    at::_foreach_mul_(sharded, 3);
    at::_foreach_sub_(sharded, others);
    at::_foreach_sigmoid_(sharded);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(same(sharded[i], (plain[i] * 3 - other_values[i]).sigmoid())) << i;
    }
    EXPECT_TRUE(same(at::cat({sharded[0], sharded[1]}, 1),
                     at::cat({full_tensor(sharded[0]), full_tensor(sharded[1])}, 1)));
  });
}

TEST(Forms, ListsMayMixMeshes) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const DeviceMesh flat = mesh.flatten("all");
    std::vector<at::Tensor> tensors = {spread(matrix(1), mesh, "S0,S1"),
                                       spread(matrix(2), flat, "S1"),
                                       spread(matrix(3), mesh, "R,S0")};
    at::_foreach_mul_(tensors, 2);
    at::_foreach_add_(tensors, std::vector<at::Scalar>{1.0, 2.0, 3.0});
    const auto roots = at::_foreach_abs(tensors);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor expected = matrix(i + 1) * 2 + static_cast<double>(i + 1);
      EXPECT_TRUE(same(tensors[i], expected));
      EXPECT_TRUE(same(roots[i], expected.abs()));
      EXPECT_EQ(device_mesh(roots[i]), device_mesh(tensors[i]));
    }
    // A number from another mesh over the same ranks is a number.
    const at::Tensor scale = tensors[1].sum();
    EXPECT_TRUE(same(tensors[0] * scale, (matrix(1) * 2 + 1) * (matrix(2) * 2 + 2).sum()));
    EXPECT_TRUE(same(at::stack({tensors[0].sum(), scale}),
                     at::stack({(matrix(1) * 2 + 1).sum(), (matrix(2) * 2 + 2).sum()})));
  });
}

TEST(Forms, SizesThatOnlyTheDataTells) {
  for_each_layout([](const DeviceMesh& mesh, const std::string& placements) {
    const at::Tensor full = test_numbers({4, 6}, 4, 3);  // 0, 1, 2
    const at::Tensor x = spread(full, mesh, placements);
    EXPECT_TRUE(same(at::nonzero(x), at::nonzero(full)));
    EXPECT_TRUE(same(at::masked_select(x, x > 0), at::masked_select(full, full > 0)));
    EXPECT_TRUE(same(x.index({x > 1}), full.index({full > 1})));
    const auto [values, inverse, counts] = at::_unique2(x, true, true, true);
    const auto [v, i, c] = at::_unique2(full, true, true, true);
    EXPECT_TRUE(same(values, v));
    EXPECT_TRUE(same(inverse, i));
    EXPECT_TRUE(same(counts, c));
    EXPECT_TRUE(same(at::bincount(x.flatten()), at::bincount(full.flatten())));
    EXPECT_TRUE(same(x.to(at::kDouble).repeat_interleave(x.select(1, 0).abs(), 0),
                     full.to(at::kDouble).repeat_interleave(full.select(1, 0).abs(), 0)));
  });
}

/// An expert that none of the rows goes to.
TEST(Forms, NoRowsToAdd) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor self = at::ones({5, 4}, at::kDouble);
    const at::Tensor index = distribute_tensor(at::empty({0}, at::kLong), mesh, {Replicate()});
    const at::Tensor none = at::empty({0, 4}, at::kDouble);
    for (const Placement& to : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
      for (const Placement& from : {Placement(Replicate()), Placement(Shard(1))}) {
        const at::Tensor onto = distribute_tensor(self, mesh, {to});
        const at::Tensor rows = distribute_tensor(none, mesh, {from});
        EXPECT_TRUE(at::equal(full_tensor(onto.index_add(0, index, rows)), self));
        EXPECT_TRUE(at::equal(full_tensor(onto.index_reduce(0, index, rows, "prod")), self));
      }
    }
    const at::Tensor part = from_local(self / 2, mesh, {Partial()});
    const at::Tensor no_part = from_local(none, mesh, {Partial()});
    EXPECT_TRUE(at::equal(full_tensor(part.index_add(0, index, no_part)), self));
  });
}

TEST(Forms, TensorsWithoutDims) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const at::Tensor full = at::full({}, 3.5, at::kDouble);
    at::Tensor x = spread(full, mesh, "R,R");
    EXPECT_TRUE(same(x * x + 1, full * full + 1));
    EXPECT_TRUE(same(x.expand({4, 6}) * spread(matrix(), mesh, "S0,S1"), matrix() * 3.5));
    EXPECT_TRUE(same(at::stack({x, x}), at::stack({full, full})));
    EXPECT_TRUE(same(x.view({1, 1}), full.view({1, 1})));
    x.add_(1);
    EXPECT_EQ(x.item<double>(), 4.5);
    EXPECT_THROW(spread(full, mesh, "S0,R"), InvalidArgument);
  });
}

TEST(Forms, ComplexNumbersAndTheirBits) {
  for_each_layout([](const DeviceMesh& mesh, const std::string& placements) {
    const at::Tensor full = at::complex(matrix(1), matrix(2));
    const at::Tensor x = spread(full, mesh, placements);
    EXPECT_TRUE(same(x * x, full * full));
    EXPECT_TRUE(same(x.abs(), full.abs()));
    EXPECT_TRUE(same(at::view_as_real(x), at::view_as_real(full)));
    EXPECT_TRUE(same(at::real(x), at::real(full)));
    EXPECT_TRUE(same(at::imag(x), at::imag(full)));
    EXPECT_TRUE(same(x.conj(), full.conj().resolve_conj()));
    EXPECT_TRUE(same(at::imag(x.conj()), at::imag(full.conj()).resolve_neg()));
    EXPECT_TRUE(same(redistribute(x.conj(), {Replicate(), Shard(0)}), full.conj().resolve_conj()));
    EXPECT_TRUE(same(at::mm(x, x.conj().t()), at::mm(full, full.conj().t())));
    EXPECT_TRUE(same(x.conj().sum(), full.conj().sum()));
    EXPECT_TRUE(same(x.conj().resolve_conj(), full.conj().resolve_conj()));
    EXPECT_TRUE(same(x.conj().clone(), full.conj().clone().resolve_conj()));
    const at::Tensor local = to_local(x.conj());
    EXPECT_TRUE(at::equal(local.resolve_conj(), to_local(x).conj().resolve_conj()));
  });
}

TEST(Forms, QuestionsAboutTensorsAreAboutTheWhole) {
  for_each_layout([](const DeviceMesh& mesh, const std::string& placements) {
    const at::Tensor x = spread(matrix(), mesh, placements);
    EXPECT_TRUE(x.is_same_size(spread(matrix(2), mesh, "R,S0")));
    EXPECT_FALSE(x.is_same_size(spread(test_numbers({4, 5}, 2), mesh, "R,S0")));
    EXPECT_TRUE(at::equal(x, spread(matrix(), mesh, "S1,R")));
    EXPECT_FALSE(at::equal(x, spread(matrix(2), mesh, "S1,R")));
    EXPECT_TRUE(at::allclose(x, spread(matrix(), mesh, "S1,R")));
    EXPECT_FALSE(at::allclose(x, spread(matrix(2), mesh, "S1,R")));
    EXPECT_EQ(x.numel(), 24);
    EXPECT_TRUE((x == x).all().item<bool>());
    EXPECT_FALSE((x > 2).any().item<bool>());
  });
}

TEST(Forms, LocalPartsThatAreNotContiguous) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor rows = matrix(static_cast<uint64_t>(rank)).t();  // 6x4, columns in memory
    const at::Tensor full = at::cat({matrix(0).t(), matrix(1).t()}, 0);
    const at::Tensor x = from_local(rows, mesh, {Shard(0)});
    EXPECT_TRUE(same(x, full));
    EXPECT_TRUE(same(x.reshape({4, 12}), full.reshape({4, 12})));
    EXPECT_TRUE(same(x.contiguous().view({48}), full.reshape({48})));
    EXPECT_TRUE(same(x.t().contiguous(), full.t()));
    const at::Tensor columns = matrix(static_cast<uint64_t>(rank)).narrow(1, 1, 4);  // with gaps
    const at::Tensor gaps = from_local(columns, mesh, {Shard(1)});
    const at::Tensor whole = at::cat({matrix(0).narrow(1, 1, 4), matrix(1).narrow(1, 1, 4)}, 1);
    EXPECT_TRUE(same(gaps, whole));
    EXPECT_TRUE(same(gaps.reshape({32}), whole.reshape({32})));
    EXPECT_TRUE(same(gaps.contiguous().view({2, 16}), whole.view({2, 16})));
    // What has moved is contiguous, and its strides say so.
    const at::Tensor turned = redistribute(x.t(), {Replicate()});
    EXPECT_TRUE(turned.is_contiguous());
    EXPECT_TRUE(same(turned.t().reshape({48}), full.reshape({48})));
  });
}

}  // namespace forms_test
}  // namespace tessera
