// Ops that have a typed kernel beside the boxed one. Both ways must make the same key of a call, or
// they would not find each other's decisions.
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_adamw_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
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
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "tessera/comm/fake.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/kernels/typed_kernel.h"
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
  const at::TensorList lists(list);
  expect_same<_foreach_add__Scalar>(lists, at::Scalar(1));
  expect_same<_foreach_add__List>(lists, lists, at::Scalar(0.5));
  expect_same<_fused_adamw_>(lists, lists, lists, lists, at::TensorList(), lists, 0.1, 0.9, 0.99,
                             0.0, 1e-8, false, false, absent, absent);
}

/// The second call and those after it make the views without libtorch.
TEST(TypedKernels, ViewsAreThoseOfEachLocalTensor) {
  const at::Tensor wide = sharded({3, 8}, Shard(0));
  for (int call = 0; call < 3; ++call) {
    for (int64_t start : {0, 4}) {  // views of one sharding with several offsets
      const at::Tensor part = wide.slice(1, start, start + 4);
      const at::Tensor local = to_local(wide).slice(1, start, start + 4);
      const at::Tensor turned = part.t();
      EXPECT_EQ(turned.storage_offset(), start);
      EXPECT_EQ(to_local(turned).strides(), local.t().strides());
      EXPECT_EQ(to_local(turned).data_ptr(), local.data_ptr());
      EXPECT_TRUE(at::equal(to_local(turned), local.t()));
      EXPECT_TRUE(at::equal(to_local(part.unsqueeze(0)), local.unsqueeze(0)));
      EXPECT_TRUE(at::equal(to_local(part.detach()), local));
      const auto before = to_local(wide)._version();
      turned.add_(1);  // a write to the view is one to the base
      EXPECT_GT(to_local(wide)._version(), before);
      EXPECT_TRUE(at::equal(to_local(turned), local.t()));
    }
  }
}

TEST(TypedKernels, ViewsOfInferenceTensorsAreInferenceTensors) {
  const at::Tensor x = sharded({3, 4}, Shard(0));
  for (int call = 0; call < 3; ++call) {
    EXPECT_FALSE(x.t().is_inference());
    const c10::InferenceMode mode;
    const at::Tensor made = x + 1;
    EXPECT_TRUE(made.t().is_inference());
    EXPECT_TRUE(to_local(made.t()).is_inference());
    EXPECT_FALSE(x.t().is_inference());
  }
}

/// foreach ops count a write for autograd, fused optimizers do not: as on plain tensors.
TEST(TypedKernels, WritesToListsAreCountedOnce) {
  const at::Tensor x = sharded({3, 4}, Shard(0));
  for (int call = 0; call < 3; ++call) {
    const auto version = x._version();
    const auto of_local = to_local(x)._version();
    const at::Tensor expected = to_local(x) + 1;
    at::_foreach_add_({x}, 1);
    EXPECT_TRUE(at::equal(to_local(x), expected));
    EXPECT_EQ(x._version(), version + 1);
    EXPECT_GT(to_local(x)._version(), of_local);
  }
  const at::Tensor gradient = at::full_like(x, 0.5);
  const at::Tensor mean = at::full_like(x, 0);
  const at::Tensor square = at::full_like(x, 0);
  const at::Tensor step = from_local(at::scalar_tensor(1.0), fake_mesh(), {Replicate()});
  for (int call = 0; call < 3; ++call) {
    const auto version = x._version();
    const auto of_local = to_local(x)._version();
    const at::Tensor before = to_local(x).clone();
    at::_fused_adamw_({x}, {gradient}, {mean}, {square}, {}, {step}, 0.1, 0.9, 0.99, 0.0, 1e-8,
                      false, false);
    EXPECT_FALSE(at::equal(to_local(x), before));
    EXPECT_EQ(x._version(), version);
    EXPECT_GT(to_local(x)._version(), of_local);
  }
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
