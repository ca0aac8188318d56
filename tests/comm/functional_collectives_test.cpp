// PyTorch's functional collectives, and c10d's own entry points, over thread ranks: found by the
// group's name, through the dispatcher.
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "tessera/comm/threads.h"
#include "tests/comm/rank_data.h"

namespace tessera {
namespace functional_collectives_test {

using comm::run_ranks;
using test::data_of;
using test::everyone;
using test::same;
using test::Tensors;

constexpr int kRanks = 3;

/// A call by boxed values: the group is a `str` in some versions of torch and `Any` in others.
template <typename... Args>
at::IValue call(const char* name, Args... args) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  std::vector<at::IValue> stack = {at::IValue(std::move(args))...};
  op.callBoxed(stack);
  return stack.front();
}

at::Tensor wait_tensor(const at::Tensor& t) {
  return call("_c10d_functional::wait_tensor", t).toTensor();
}

at::Tensor wait_tensor(const at::IValue& value) { return wait_tensor(value.toTensor()); }

TEST(FunctionalCollectives, AllReduce) {
  run_ranks(kRanks, [](int rank) {
    const std::string name = everyone(kRanks)->name();
    const at::Tensor x = at::full({2}, rank + 1.0);
    const auto reduced = [&](const char* op) {
      return wait_tensor(call("_c10d_functional::all_reduce", x, op, name));
    };
    EXPECT_TRUE(same(reduced("sum"), at::full({2}, 6.0)));
    EXPECT_TRUE(same(reduced("avg"), at::full({2}, 2.0)));
    EXPECT_TRUE(same(reduced("max"), at::full({2}, 3.0)));
    EXPECT_TRUE(same(x, at::full({2}, rank + 1.0)));
  });
}

TEST(FunctionalCollectives, GatherScatterExchangeAndBroadcast) {
  run_ranks(kRanks, [](int rank) {
    const std::string name = everyone(kRanks)->name();
    const at::Tensor mine = data_of(rank, {2, 2}, at::kFloat);
    const at::Tensor all = at::cat({data_of(0, {2, 2}, at::kFloat), data_of(1, {2, 2}, at::kFloat),
                                    data_of(2, {2, 2}, at::kFloat)});
    EXPECT_TRUE(same(
        wait_tensor(call("_c10d_functional::all_gather_into_tensor", mine, int64_t{kRanks}, name)),
        all));
    EXPECT_TRUE(same(wait_tensor(call("_c10d_functional::reduce_scatter_tensor", all, "sum",
                                      int64_t{kRanks}, name)),
                     mine * kRanks));

    const at::Tensor rows = at::full({6}, rank, at::kLong);  // 1, 2 and 3 rows to ranks 0, 1, 2
    const std::vector<int64_t> input_splits = {1, 2, 3};
    const std::vector<int64_t> output_splits(kRanks, rank + 1);
    EXPECT_TRUE(same(wait_tensor(call("_c10d_functional::all_to_all_single", rows, output_splits,
                                      input_splits, name)),
                     at::repeat_interleave(at::arange(kRanks), rank + 1)));
    EXPECT_TRUE(same(wait_tensor(call("_c10d_functional::broadcast", mine, int64_t{1}, name)),
                     data_of(1, {2, 2}, at::kFloat)));
  });
}

TEST(FunctionalCollectives, CoalescedForms) {
  run_ranks(kRanks, [](int rank) {
    const std::string name = everyone(kRanks)->name();
    const Tensors mine = {at::full({2}, rank + 1.0), at::full({3}, rank + 2.0)};
    const Tensors sums =
        call("_c10d_functional::all_reduce_coalesced", mine, "sum", name).toTensorVector();
    EXPECT_TRUE(same(wait_tensor(sums[0]), at::full({2}, 6.0)));
    EXPECT_TRUE(same(wait_tensor(sums[1]), at::full({3}, 9.0)));

    const Tensors all =
        call("_c10d_functional::all_gather_into_tensor_coalesced", mine, int64_t{kRanks}, name)
            .toTensorVector();
    EXPECT_EQ(wait_tensor(all[0]).size(0), 2 * kRanks);
    EXPECT_EQ(wait_tensor(all[1]).size(0), 3 * kRanks);

    const Tensors whole = {at::ones({3}), at::ones({6})};
    const Tensors chunks = call("_c10d_functional::reduce_scatter_tensor_coalesced", whole, "sum",
                                int64_t{kRanks}, name)
                               .toTensorVector();
    EXPECT_TRUE(same(wait_tensor(chunks[0]), at::full({1}, 3.0)));
    EXPECT_TRUE(same(wait_tensor(chunks[1]), at::full({2}, 3.0)));
  });
}

TEST(FunctionalCollectives, C10dThroughTheProcessGroup) {
  run_ranks(kRanks, [](int rank) {
    const auto group = everyone(kRanks);
    auto& pg = *group->process_group();
    EXPECT_EQ(pg.getRank(), rank);
    EXPECT_EQ(pg.getSize(), kRanks);
    EXPECT_EQ(pg.getGroupName(), group->name());
    Tensors t = {at::full({2}, rank + 1.0)};
    pg.allreduce(t)->wait();
    EXPECT_TRUE(same(t[0], at::full({2}, 6.0)));
    pg.broadcast(t)->wait();
    pg.barrier()->wait();
    pg.monitoredBarrier({});
    Tensors mine = {at::full({1}, rank, at::kLong)};
    std::vector<Tensors> all = {
        {at::empty_like(mine[0]), at::empty_like(mine[0]), at::empty_like(mine[0])}};
    pg.allgather(all, mine)->wait();
    EXPECT_EQ(all[0][2].item<int64_t>(), 2);
    Tensors got = {at::empty({1}, at::kLong)};
    auto sent = pg.send(mine, (rank + 1) % kRanks, 0);
    pg.recv(got, (rank + kRanks - 1) % kRanks, 0)->wait();
    sent->wait();
    EXPECT_EQ(got[0].item<int64_t>(), (rank + kRanks - 1) % kRanks);
  });
}

TEST(FunctionalCollectives, NamesAreRegisteredWhileTheGroupLives) {
  std::string name;
  run_ranks(2, [&](int rank) {
    const auto group = everyone(2);
    EXPECT_EQ(c10d::resolve_process_group(group->name()), group->process_group());
    if (rank == 0) name = group->name();
  });
  EXPECT_THROW(c10d::resolve_process_group(name), c10::Error);
}

}  // namespace functional_collectives_test
}  // namespace tessera
