// Forms of collectives among thread ranks: coalesced, strided, in place, large; random programs.
#include "tessera/comm/threads.h"
#include "tests/support_pure/property.h"
#include "tests/threads/reference.h"

namespace tessera {
namespace thread_forms_test {

using c10d::ReduceOp;
using comm::run_ranks;
using test::data_of;
using test::everyone;
using test::of_all_ranks;
using test::reference;
using test::same;
using test::Tensors;

constexpr int kRanks = 4;

TEST(ThreadForms, CoalescedFormsTreatEachTensorAlone) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    const auto salted = [&](int r, int64_t salt) {
      return data_of(r, {4 * salt}, salt == 1 ? at::kFloat : at::kLong, salt);
    };
    const auto mine = [&] { return Tensors{salted(rank, 1), salted(rank, 2)}; };

    Tensors reduced = mine();
    backend.allreduce_coalesced(reduced, {})->wait();
    Tensors inputs = mine();
    Tensors gathered = {at::empty({16}, at::kFloat), at::empty({32}, at::kLong)};
    backend.allgather_into_tensor_coalesced(gathered, inputs)->wait();
    std::vector<Tensors> lists(kRanks);
    for (auto& list : lists) list = {at::empty({4}, at::kFloat), at::empty({8}, at::kLong)};
    backend.allgather_coalesced(lists, inputs)->wait();
    Tensors scattered = {at::empty({1}, at::kFloat), at::empty({2}, at::kLong)};
    backend.reduce_scatter_tensor_coalesced(scattered, inputs)->wait();

    for (size_t i = 0; i < 2; ++i) {
      Tensors parts;
      for (int r = 0; r < kRanks; ++r) parts.push_back(salted(r, static_cast<int64_t>(i) + 1));
      const at::Tensor sum = reference(ReduceOp::SUM, parts);
      EXPECT_TRUE(same(reduced[i], sum));
      EXPECT_TRUE(same(gathered[i], at::cat(parts)));
      EXPECT_TRUE(same(scattered[i], sum.chunk(kRanks)[static_cast<size_t>(rank)]));
      for (int r = 0; r < kRanks; ++r) {
        EXPECT_TRUE(same(lists[static_cast<size_t>(r)][i], parts[static_cast<size_t>(r)]));
      }
    }
  });
}

TEST(ThreadForms, TensorsNeedNotBeContiguous) {
  run_ranks(2, [](int rank) {
    auto& backend = everyone(2)->backend(at::kCPU);
    Tensors reduced = {data_of(rank, {3, 4}, at::kFloat).t()};
    backend.allreduce(reduced)->wait();
    EXPECT_TRUE(
        same(reduced[0], reference(ReduceOp::SUM, of_all_ranks(2, {3, 4}, at::kFloat)).t()));

    at::Tensor every_other = data_of(rank, {8}, at::kFloat).slice(0, 0, 8, 2);
    at::Tensor gathered = at::empty({8});
    backend._allgather_base(gathered, every_other)->wait();
    EXPECT_TRUE(same(gathered, at::cat({data_of(0, {8}, at::kFloat).slice(0, 0, 8, 2),
                                        data_of(1, {8}, at::kFloat).slice(0, 0, 8, 2)})));

    at::Tensor wide = data_of(rank, {3, 4}, at::kFloat).t();  // 4 x 3, rows are split
    at::Tensor chunk = at::empty({2, 3});
    backend._reduce_scatter_base(chunk, wide)->wait();
    const at::Tensor sum = reference(ReduceOp::SUM, of_all_ranks(2, {3, 4}, at::kFloat)).t();
    EXPECT_TRUE(same(chunk, sum.contiguous().chunk(2)[static_cast<size_t>(rank)]));

    Tensors conjugated = {data_of(rank, {4}, at::kComplexFloat).conj()};
    backend.broadcast(conjugated, {.rootRank = 1})->wait();
    EXPECT_TRUE(at::equal(conjugated[0], data_of(1, {4}, at::kComplexFloat).conj()));
  });
}

TEST(ThreadForms, ConjugatedAndNegatedViewsAreTakenAtTheirValue) {
  run_ranks(2, [](int rank) {
    auto& backend = everyone(2)->backend(at::kCPU);
    const auto lazy = [](int r, bool negated) {
      return negated ? at::_neg_view(data_of(r, {2, 3}, at::kFloat))
                     : data_of(r, {2, 3}, at::kComplexFloat).conj();
    };
    for (const bool negated : {false, true}) {
      const auto plain = [&](int r) { return lazy(r, negated).resolve_conj().resolve_neg(); };
      at::Tensor mine = lazy(rank, negated);
      ASSERT_TRUE(negated ? mine.is_neg() : mine.is_conj());
      Tensors reduced = {mine};
      backend.allreduce(reduced)->wait();
      EXPECT_TRUE(at::equal(reduced[0], plain(0) + plain(1)));

      mine = lazy(rank, negated);
      at::Tensor gathered = at::empty({4, 3}, mine.scalar_type());
      backend._allgather_base(gathered, mine)->wait();
      EXPECT_TRUE(at::equal(gathered, at::cat({plain(0), plain(1)})));
      at::Tensor chunk = at::empty({1, 3}, mine.scalar_type());
      backend._reduce_scatter_base(chunk, mine)->wait();
      EXPECT_TRUE(at::equal(chunk, (plain(0) + plain(1)).narrow(0, rank, 1)));

      at::Tensor got = lazy(rank, negated);
      std::vector<int64_t> even;
      backend.alltoall_base(got, mine, even, even)->wait();
      EXPECT_TRUE(at::equal(got, at::stack({plain(0)[rank], plain(1)[rank]})));
      Tensors out = {lazy(rank, negated)};
      Tensors in = {lazy(rank, negated)};
      auto sent = backend.send(out, 1 - rank, 0);
      backend.recv(in, 1 - rank, 0)->wait();
      sent->wait();
      EXPECT_TRUE(at::equal(in[0], plain(1 - rank)));
    }
  });
}

TEST(ThreadForms, InPlaceGatherAndScatterMayShareTheBuffer) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    for (const int64_t count : {int64_t{3}, int64_t{100'000}}) {  // one share, and one a rank
      at::Tensor buffer = at::zeros({kRanks, count});
      at::Tensor mine = buffer[rank];
      mine.copy_(data_of(rank, {count}, at::kFloat));
      backend._allgather_base(buffer, mine)->wait();
      for (int r = 0; r < kRanks; ++r)
        EXPECT_TRUE(same(buffer[r], data_of(r, {count}, at::kFloat)));

      buffer = data_of(rank, {kRanks, count}, at::kFloat);
      mine = buffer[rank];
      backend._reduce_scatter_base(mine, buffer)->wait();
      const at::Tensor sum =
          reference(ReduceOp::SUM, of_all_ranks(kRanks, {kRanks, count}, at::kFloat));
      EXPECT_TRUE(same(mine, sum[rank]));
    }
  });
}

TEST(ThreadForms, LargeTensorsMovedInSharesAreRightForEveryCollective) {
  constexpr int64_t kCount = 200'003;  // not a multiple of anything
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    for (int round = 0; round < 3; ++round) {
      Tensors reduced = {data_of(rank, {kCount}, at::kInt, round)};
      backend.allreduce(reduced)->wait();
      const at::Tensor sum =
          reference(ReduceOp::SUM, of_all_ranks(kRanks, {kCount}, at::kInt, round));
      EXPECT_TRUE(same(reduced[0], sum));

      at::Tensor mine = data_of(rank, {kCount}, at::kInt, round);
      at::Tensor all = at::empty({kRanks, kCount}, at::kInt);
      backend._allgather_base(all, mine)->wait();
      at::Tensor chunk = at::empty({kCount}, at::kInt);
      backend._reduce_scatter_base(chunk, all)->wait();
      EXPECT_TRUE(same(chunk, data_of(rank, {kCount}, at::kInt, round) * kRanks));

      at::Tensor swapped = at::empty_like(all);
      at::Tensor sent = all + rank;
      std::vector<int64_t> none;
      backend.alltoall_base(swapped, sent, none, none)->wait();
      for (int r = 0; r < kRanks; ++r) {
        EXPECT_TRUE(same(swapped[r], data_of(rank, {kCount}, at::kInt, round) + r));
      }
      Tensors copied = {data_of(rank, {kCount}, at::kInt, round)};
      backend.broadcast(copied, {.rootRank = 3})->wait();
      EXPECT_TRUE(same(copied[0], data_of(3, {kCount}, at::kInt, round)));
    }
  });
}

/// One step of a random program; the same on every rank.
struct Step {
  std::vector<int> ranks;
  int kind;
  int root;
  int64_t count;
};

/// Posts `step` for `rank` and returns how to check it after the wait.
std::function<void()> post_step(const Step& step, int rank, int64_t salt) {
  const auto group = comm::current_world()->group(step.ranks);
  auto& backend = group->backend(at::kCPU);
  const auto n = static_cast<int64_t>(step.ranks.size());
  const auto of = [=](int world_rank) {
    return data_of(world_rank, {step.count}, at::kLong, salt);
  };
  Tensors parts;
  for (const int r : step.ranks) parts.push_back(of(r));
  auto t = std::make_shared<Tensors>(Tensors{of(rank)});
  const auto finish = [t](c10::intrusive_ptr<c10d::Work> work, at::Tensor want) {
    return [=] {
      work->wait();
      EXPECT_TRUE(same(t->back(), want));
    };
  };
  if (step.kind == 0) return finish(backend.allreduce(*t), reference(ReduceOp::SUM, parts));
  if (step.kind == 1) {
    return finish(backend.broadcast(*t, {.rootRank = step.root}),
                  parts[static_cast<size_t>(step.root)]);
  }
  if (step.kind == 2) {
    t->push_back(at::empty({n * step.count}, at::kLong));
    return finish(backend._allgather_base((*t)[1], (*t)[0]), at::cat(parts));
  }
  if (step.kind == 3) {  // a ring of messages
    t->push_back(at::empty({step.count}, at::kLong));
    const int next = static_cast<int>((group->index() + 1) % n);
    const int before = static_cast<int>((group->index() + n - 1) % n);
    Tensors out = {(*t)[0]};
    Tensors in = {(*t)[1]};
    auto sent = backend.send(out, next, static_cast<int>(salt));
    auto check = finish(backend.recv(in, before, static_cast<int>(salt)),
                        parts[static_cast<size_t>(before)]);
    return [=] {
      sent->wait();
      check();
    };
  }
  t->push_back(at::empty({step.count}, at::kLong));
  at::Tensor whole = (*t)[0].repeat({n});
  return finish(backend._reduce_scatter_base((*t)[1], whole), reference(ReduceOp::SUM, parts));
}

TEST(ThreadForms, RandomProgramsOverRandomGroupsAreRight) {
  test::for_each_seed(40, [](test::Rng& rng) {
    const int n = rng.int_between(2, 7);
    std::vector<Step> program;
    for (int i = 0; i < 60; ++i) {
      std::vector<int> ranks = test::iota(n);
      rng.shuffle(ranks);
      ranks.resize(static_cast<size_t>(rng.int_between(2, n)));
      const int root = rng.int_between(0, static_cast<int>(ranks.size()) - 1);
      const int64_t count = rng.chance(5) ? 70'000 : rng.between(0, 5);
      program.push_back({ranks, rng.int_between(0, 4), root, count});
    }
    const auto seed = rng.next();
    run_ranks(n, [&](int rank) {
      test::Rng own(seed + static_cast<uint64_t>(rank));
      std::vector<std::function<void()>> open;
      for (size_t i = 0; i < program.size(); ++i) {
        const auto& ranks = program[i].ranks;
        if (std::ranges::find(ranks, rank) == ranks.end()) continue;
        open.push_back(post_step(program[i], rank, static_cast<int64_t>(i)));
        // All ranks post in the same order, so waiting at any time is safe: for all, or for one.
        if (own.chance(20)) {
          own.shuffle(open);
          const size_t keep = own.chance(50) ? 0 : open.size() - 1;
          while (open.size() > keep) {
            open.back()();
            open.pop_back();
          }
        }
      }
      for (auto& check : open) check();
    });
  });
}

}  // namespace thread_forms_test
}  // namespace tessera
