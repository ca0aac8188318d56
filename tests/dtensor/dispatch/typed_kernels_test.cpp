// Ops that have a typed kernel beside the boxed one. Both ways must make the same key of a call, or
// they would not find each other's decisions.
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/stack_ops.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/unbind_ops.h>
#include <ATen/ops/view_ops.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "tessera/comm/fake.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dispatch/typed_kernel.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support/parts.h"

namespace tessera::dtensor {
namespace typed_kernels_test {

/// One rank of a world that sends nothing.
DeviceMesh fake_mesh() { return DeviceMesh::parse("tp=2").in_world(comm::fake_world(0, 2)); }

at::Tensor sharded(std::vector<int64_t> shape, Placement placement) {
  test::Rng rng(1);
  return from_local(test::random_whole_numbers(rng, shape, at::kDouble), fake_mesh(),
                    {std::move(placement)}, {.even = true});
}

template <class Op, class Result, class... Args>
void expect_same_key(Result (*)(Args...), std::type_identity_t<Args>... args) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
  const OpEntry entry(op);
  DecisionKey typed;
  (words::add(entry, typed, args), ...);
  Stack stack;
  torch::jit::push(stack, args...);
  ASSERT_EQ(stack.size(), entry.args.size());
  DecisionKey boxed;
  add_call(entry, stack, boxed);
  EXPECT_EQ(typed.to_vector(), boxed.to_vector()) << entry.name;
  EXPECT_EQ(typed.hash(), boxed.hash());
}

template <class Op>
void expect_same(const auto&... args) {
  expect_same_key<Op>(&Op::call, args...);
}

TEST(TypedKernels, MakeTheKeyThatTheStackMakes) {
  using namespace at::_ops;
  const at::Tensor x = sharded({3, 4}, Shard(0));
  const at::Tensor weight = sharded({4, 4}, Replicate());
  const at::Tensor rows = from_local(at::arange(4), fake_mesh(), {Shard(0)}, {.even = true});
  const at::Tensor plain_number = at::scalar_tensor(3.0, at::kDouble);
  const std::vector<c10::SymInt> sizes = {6, 2, 2};
  const std::vector<c10::SymInt> width = {4};
  const std::vector<int64_t> dims = {1};
  const std::optional<at::Tensor> absent;

  for (const at::Scalar& alpha :
       {at::Scalar(2), at::Scalar(0.5), at::Scalar(true), at::Scalar(c10::complex<double>(1, 2))}) {
    expect_same<add_Tensor>(x, x, alpha);
    expect_same<mul_Scalar>(x, alpha);
  }
  expect_same<mul_Tensor>(x, plain_number);
  expect_same<sum>(x, std::nullopt);
  expect_same<sum>(x, at::kChar);
  expect_same<sum_dim_IntList>(x, at::OptionalIntArrayRef(), false, std::nullopt);
  expect_same<sum_dim_IntList>(x, at::OptionalIntArrayRef(dims), true, at::kFloat);
  expect_same<mean_dim>(x, at::OptionalIntArrayRef(dims), false, std::nullopt);
  expect_same<view>(x, c10::SymIntArrayRef(sizes));
  expect_same<slice_Tensor>(x, 1, std::nullopt, c10::SymInt(3), c10::SymInt(1));
  expect_same<at::_ops::clone>(x, std::nullopt);
  expect_same<at::_ops::clone>(x, at::MemoryFormat::Preserve);
  expect_same<gelu>(x, c10::string_view("tanh"));
  expect_same<_softmax>(x, 1, false);
  expect_same<linear>(x, weight, absent);
  expect_same<linear>(x, weight, std::optional<at::Tensor>(weight));
  expect_same<embedding>(weight, rows, c10::SymInt(-1), false, true);
  expect_same<embedding_dense_backward>(x, rows, c10::SymInt(4), c10::SymInt(-1), false);
  expect_same<native_layer_norm>(x, c10::SymIntArrayRef(width), absent, absent, 1e-5);
  for (const std::array<bool, 3> wanted : {std::array{true, true, false}, {true, false, true}}) {
    expect_same<native_layer_norm_backward>(x, x, c10::SymIntArrayRef(width), x, x, absent, absent,
                                            wanted);
  }
  const std::vector<at::Tensor> list = {x, x, weight};
  expect_same<at::_ops::stack>(at::TensorList(list), 0);
  expect_same<unbind_int>(x, 1);
}

/// Of a list of views, and of a list of tensors.
TEST(TypedKernels, ListsAreThoseOfTheLocalTensors) {
  const at::Tensor x = sharded({3, 4}, Shard(0));
  const at::Tensor local = to_local(x);
  for (int call = 0; call < 3; ++call) {  // the first one decides
    const auto columns = x.unbind(1);
    ASSERT_EQ(columns.size(), 4u);
    for (int64_t i = 0; i < 4; ++i) {
      const at::Tensor& column = columns[static_cast<size_t>(i)];
      EXPECT_EQ(sharding(column).placements_text(), "S0");
      EXPECT_EQ(column.storage_offset(), i);
      EXPECT_TRUE(at::equal(to_local(column), local.select(1, i)));
    }
    const at::Tensor again = at::stack(columns, 1);
    EXPECT_EQ(sharding(again), sharding(x));
    EXPECT_TRUE(at::equal(to_local(again), local));
    columns[0].mul_(2);  // a view
    EXPECT_TRUE(at::equal(local.select(1, 0), to_local(columns[0])));
  }
}

TEST(TypedKernels, NothingIsNotTheNumberOne) {
  const at::Tensor x = sharded({3, 4}, Shard(0));
  EXPECT_EQ(sharding(at::sum(x)).dtype(), DType::f64);
  EXPECT_EQ(sharding(at::sum(x, static_cast<at::ScalarType>(1))).dtype(),
            static_cast<DType>(at::kChar));
}

TEST(TypedKernels, MemoryOfResultsMayBeFreedByAnotherThread) {
  const at::Tensor x = sharded({3, 4}, Shard(0));
  std::vector<at::Tensor> made;
  for (int i = 0; i < 200; ++i) made.push_back(x + i);
  std::thread([&] { made.clear(); }).join();
  for (int i = 0; i < 200; ++i) made.push_back(x + i);
  EXPECT_TRUE(at::equal(to_local(made.back()), to_local(x) + 199));
}

}  // namespace typed_kernels_test
}  // namespace tessera::dtensor
