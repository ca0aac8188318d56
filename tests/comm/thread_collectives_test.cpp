// Every collective among thread ranks against what its definition says, for all dtypes and sizes.
#include "tessera/comm/threads.h"
#include "tests/comm/rank_data.h"
#include "tests/support_pure/property.h"

namespace tessera {
namespace {

using c10d::ReduceOp;
using comm::run_ranks;
using test::data_of;
using test::everyone;
using test::same;
using test::Tensors;

constexpr int kRanks = 4;

bool has_meaning(ReduceOp::RedOpType op, at::ScalarType dtype) {
  const bool integral = at::isIntegralType(dtype, true);
  if (op == ReduceOp::BAND || op == ReduceOp::BOR || op == ReduceOp::BXOR) return integral;
  if (op == ReduceOp::MIN || op == ReduceOp::MAX) return !at::isComplexType(dtype);
  if (op == ReduceOp::AVG) return dtype != at::kBool;
  return true;
}

/// One element after another in the widest type of its kind, the slow and obvious way.
at::Tensor reference(ReduceOp::RedOpType op, const Tensors& parts) {
  const auto dtype = parts[0].scalar_type();
  const auto wide = at::isComplexType(dtype)          ? at::kComplexDouble
                    : at::isIntegralType(dtype, true) ? at::kLong
                                                      : at::kDouble;
  at::Tensor all = parts[0].to(wide).clone();
  for (size_t r = 1; r < parts.size(); ++r) {
    const at::Tensor next = parts[r].to(wide);
    switch (op) {
      case ReduceOp::PRODUCT:
        all = all * next;
        break;
      case ReduceOp::MIN:
        all = at::minimum(all, next);
        break;
      case ReduceOp::MAX:
        all = at::maximum(all, next);
        break;
      case ReduceOp::BAND:
        all = at::bitwise_and(all, next);
        break;
      case ReduceOp::BOR:
        all = at::bitwise_or(all, next);
        break;
      case ReduceOp::BXOR:
        all = at::bitwise_xor(all, next);
        break;
      default:
        all = all + next;
    }
  }
  if (op == ReduceOp::AVG) {
    const auto n = static_cast<int64_t>(parts.size());
    all = wide == at::kLong ? all.div(n, "trunc") : all / n;
  }
  if (dtype == at::kBool) return all != 0;
  return all.to(dtype);
}

Tensors of_all_ranks(int n, at::IntArrayRef shape, at::ScalarType dtype, int64_t salt = 0) {
  Tensors parts;
  for (int r = 0; r < n; ++r) parts.push_back(data_of(r, shape, dtype, salt));
  return parts;
}

template <typename F>
void for_each_case(const F& f) {
  for (const auto dtype : test::all_dtypes()) {
    for (const auto& shape : test::some_shapes()) {
      SCOPED_TRACE(::testing::Message() << dtype << " " << at::IntArrayRef(shape));
      f(at::IntArrayRef(shape), dtype);
    }
  }
}

TEST(ThreadCollectives, AllReduceFollowsItsDefinitionForEveryOpAndDtype) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    for_each_case([&](at::IntArrayRef shape, at::ScalarType dtype) {
      for (const auto op : {ReduceOp::SUM, ReduceOp::AVG, ReduceOp::PRODUCT, ReduceOp::MIN,
                            ReduceOp::MAX, ReduceOp::BAND, ReduceOp::BOR, ReduceOp::BXOR}) {
        if (!has_meaning(op, dtype)) continue;
        Tensors mine = {data_of(rank, shape, dtype)};
        backend.allreduce(mine, {.reduceOp = op})->wait();
        EXPECT_TRUE(same(mine[0], reference(op, of_all_ranks(kRanks, shape, dtype)))) << int(op);
      }
    });
  });
}

/// What c10d::makePreMulSum makes, which torch 2.11 calls otherwise.
template <typename Factor>
c10d::ReduceOp premul_sum(const Factor& factor) {
  c10d::ReduceOp op;
  op.op_ = c10d::ReduceOp::PREMUL_SUM;
  op.supplement_ = c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(factor);
  return op;
}

TEST(ThreadCollectives, PremulSumScalesEachRankByItsFactor) {
  run_ranks(3, [](int rank) {
    auto& backend = everyone(3)->backend(at::kCPU);
    Tensors mine = {at::full({2}, rank + 1.0)};
    backend.allreduce(mine, {.reduceOp = premul_sum(0.5)})->wait();
    EXPECT_TRUE(same(mine[0], at::full({2}, 3.0)));
    mine = {at::full({2}, 1.0)};
    const at::Tensor factor = at::full({1}, rank + 1.0);
    backend.allreduce(mine, {.reduceOp = premul_sum(factor)})->wait();
    EXPECT_TRUE(same(mine[0], at::full({2}, 6.0)));
  });
}

TEST(ThreadCollectives, LowPrecisionSumsRoundOnce) {
  // 1 + 63 times 1/256: bfloat16 cannot hold 1 + 1/256, so rounding at each step would give 1.
  run_ranks(64, [](int rank) {
    auto& backend = everyone(64)->backend(at::kCPU);
    Tensors mine = {at::full({3}, rank == 0 ? 1.0 : 1.0 / 256, at::kBFloat16)};
    backend.allreduce(mine)->wait();
    EXPECT_TRUE(same(mine[0], at::full({3}, 1.0 + 63.0 / 256, at::kBFloat16)));
  });
}

TEST(ThreadCollectives, MinAndMaxPassNanOn) {
  run_ranks(3, [](int rank) {
    auto& backend = everyone(3)->backend(at::kCPU);
    for (const auto op : {ReduceOp::MIN, ReduceOp::MAX}) {
      Tensors mine = {at::full({2}, rank == 1 ? NAN : 1.0)};
      backend.allreduce(mine, {.reduceOp = op})->wait();
      EXPECT_TRUE(at::isnan(mine[0]).all().item<bool>());
    }
  });
}

TEST(ThreadCollectives, ReduceReachesTheRootAlone) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    for_each_case([&](at::IntArrayRef shape, at::ScalarType dtype) {
      for (int root = 0; root < kRanks; ++root) {
        Tensors mine = {data_of(rank, shape, dtype)};
        backend.reduce(mine, {.reduceOp = ReduceOp::SUM, .rootRank = root})->wait();
        const at::Tensor want = rank == root
                                    ? reference(ReduceOp::SUM, of_all_ranks(kRanks, shape, dtype))
                                    : data_of(rank, shape, dtype);
        EXPECT_TRUE(same(mine[0], want));
      }
    });
  });
}

TEST(ThreadCollectives, BroadcastCopiesTheRoot) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    for_each_case([&](at::IntArrayRef shape, at::ScalarType dtype) {
      Tensors mine = {data_of(rank, shape, dtype)};
      backend.broadcast(mine, {.rootRank = 2})->wait();
      EXPECT_TRUE(same(mine[0], data_of(2, shape, dtype)));
    });
  });
}

TEST(ThreadCollectives, AllGatherIntoTensorConcatenates) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    for_each_case([&](at::IntArrayRef shape, at::ScalarType dtype) {
      at::Tensor mine = data_of(rank, shape, dtype);
      at::Tensor all = at::empty({kRanks * mine.numel()}, dtype);
      backend._allgather_base(all, mine)->wait();
      Tensors flat;
      for (auto& part : of_all_ranks(kRanks, shape, dtype)) flat.push_back(part.reshape(-1));
      EXPECT_TRUE(same(all, at::cat(flat)));
    });
  });
}

TEST(ThreadCollectives, AllGatherOfUnevenListsFillsEachPlace) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    for (const auto dtype : test::all_dtypes()) {
      Tensors mine = {data_of(rank, {rank, 3}, dtype)};  // rank 0 has nothing
      std::vector<Tensors> all(1);
      for (int r = 0; r < kRanks; ++r) all[0].push_back(at::empty({r, 3}, dtype));
      backend.allgather(all, mine)->wait();
      for (int r = 0; r < kRanks; ++r) {
        EXPECT_TRUE(same(all[0][static_cast<size_t>(r)], data_of(r, {r, 3}, dtype)));
      }
    }
  });
}

TEST(ThreadCollectives, CoalescedFormsTreatEachTensorAlone) {
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

TEST(ThreadCollectives, ReduceScatterGivesEachRankItsChunkOfTheReduction) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    for_each_case([&](at::IntArrayRef shape, at::ScalarType dtype) {
      std::vector<int64_t> whole = {kRanks};
      whole.insert(whole.end(), shape.begin(), shape.end());
      for (const auto op : {ReduceOp::SUM, ReduceOp::MAX, ReduceOp::AVG}) {
        if (!has_meaning(op, dtype)) continue;
        at::Tensor mine = data_of(rank, whole, dtype);
        at::Tensor out = at::empty(shape, dtype);
        backend._reduce_scatter_base(out, mine, {.reduceOp = op})->wait();
        const at::Tensor sum = reference(op, of_all_ranks(kRanks, whole, dtype));
        EXPECT_TRUE(same(out, sum[rank]));
      }
    });
  });
}

TEST(ThreadCollectives, ReduceScatterOfUnevenLists) {
  run_ranks(3, [](int rank) {
    auto& backend = everyone(3)->backend(at::kCPU);
    std::vector<Tensors> inputs(1);
    for (int to = 0; to < 3; ++to) inputs[0].push_back(data_of(rank, {to + 1}, at::kFloat, to));
    Tensors out = {at::empty({rank + 1})};
    backend.reduce_scatter(out, inputs)->wait();
    EXPECT_TRUE(
        same(out[0], reference(ReduceOp::SUM, of_all_ranks(3, {rank + 1}, at::kFloat, rank))));
  });
}

TEST(ThreadCollectives, AllToAllSingleTransposesRowsOfAnyCount) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    test::for_each_seed(30, [&](test::Rng& rng) {
      // The same table on every rank: rows[a][b] go from a to b.
      int64_t rows[kRanks][kRanks];
      for (auto& line : rows) {
        for (auto& count : line) count = rng.between(0, 3);
      }
      const auto dtype = rng.one_of(test::all_dtypes());
      const int64_t width = rng.between(1, 3);
      const auto message = [&](int from, int to) {
        return data_of(from, {rows[from][to], width}, dtype, to);
      };
      Tensors out;
      Tensors in;
      std::vector<int64_t> input_splits;
      std::vector<int64_t> output_splits;
      for (int r = 0; r < kRanks; ++r) {
        in.push_back(message(rank, r));
        out.push_back(message(r, rank));
        input_splits.push_back(rows[rank][r]);
        output_splits.push_back(rows[r][rank]);
      }
      at::Tensor input = at::cat(in);
      at::Tensor output = at::empty_like(at::cat(out));
      backend.alltoall_base(output, input, output_splits, input_splits)->wait();
      EXPECT_TRUE(same(output, at::cat(out)));

      Tensors list_out;
      for (const auto& t : out) list_out.push_back(at::empty_like(t));
      backend.alltoall(list_out, in)->wait();
      for (size_t r = 0; r < out.size(); ++r) EXPECT_TRUE(same(list_out[r], out[r]));
    });
  });
}

TEST(ThreadCollectives, AllToAllSingleWithoutSplitsIsEven) {
  run_ranks(2, [](int rank) {
    auto& backend = everyone(2)->backend(at::kCPU);
    at::Tensor input = at::arange(4) + 10 * rank;
    at::Tensor output = at::empty({4}, at::kLong);
    std::vector<int64_t> none;
    backend.alltoall_base(output, input, none, none)->wait();
    EXPECT_TRUE(same(output, at::cat({at::arange(2) + 2 * rank, at::arange(2) + 10 + 2 * rank})));
  });
}

TEST(ThreadCollectives, GatherAndScatterGoByTheRoot) {
  run_ranks(kRanks, [](int rank) {
    auto& backend = everyone(kRanks)->backend(at::kCPU);
    for_each_case([&](at::IntArrayRef shape, at::ScalarType dtype) {
      const int root = 1;
      Tensors mine = {data_of(rank, shape, dtype)};
      std::vector<Tensors> all;
      if (rank == root) all = {of_all_ranks(kRanks, shape, dtype, 9)};
      backend.gather(all, mine, {.rootRank = root})->wait();
      if (rank == root) {
        for (int r = 0; r < kRanks; ++r) {
          EXPECT_TRUE(same(all[0][static_cast<size_t>(r)], data_of(r, shape, dtype)));
        }
      }
      Tensors back = {at::empty(shape, dtype)};
      backend.scatter(back, all, {.rootRank = root})->wait();
      EXPECT_TRUE(same(back[0], data_of(rank, shape, dtype)));
    });
  });
}

TEST(ThreadCollectives, TensorsNeedNotBeContiguous) {
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

    at::Tensor wide = data_of(rank, {3, 4}, at::kFloat).t();  // 4 x 3, rows are cut
    at::Tensor chunk = at::empty({2, 3});
    backend._reduce_scatter_base(chunk, wide)->wait();
    const at::Tensor sum = reference(ReduceOp::SUM, of_all_ranks(2, {3, 4}, at::kFloat)).t();
    EXPECT_TRUE(same(chunk, sum.contiguous().chunk(2)[static_cast<size_t>(rank)]));

    Tensors conjugated = {data_of(rank, {4}, at::kComplexFloat).conj()};
    backend.broadcast(conjugated, {.rootRank = 1})->wait();
    EXPECT_TRUE(at::equal(conjugated[0], data_of(1, {4}, at::kComplexFloat).conj()));
  });
}

TEST(ThreadCollectives, InPlaceGatherAndScatterMayShareTheBuffer) {
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

TEST(ThreadCollectives, LargeTensorsMovedInSharesAreRightForEveryCollective) {
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

TEST(ThreadCollectives, RandomProgramsOverRandomGroupsAreRight) {
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

TEST(ThreadCollectives, SparseTensorsAddUp) {
  run_ranks(3, [](int rank) {
    auto& backend = everyone(3)->backend(at::kCPU);
    const auto at_place = [](int place) {
      return at::sparse_coo_tensor(at::full({1, 1}, place, at::kLong), at::ones({1, 2}), {4, 2});
    };
    Tensors mine = {at_place(rank % 2)};  // ranks 0 and 2 share a place
    backend.allreduce_sparse(mine, {})->wait();
    EXPECT_TRUE(same(mine[0].to_dense(), at_place(0).to_dense() * 2 + at_place(1).to_dense()));
  });
}

TEST(ThreadCollectives, MetaTensorsAreCheckedButNotMoved) {
  run_ranks(2, [](int) {
    auto& backend = everyone(2)->backend(at::kMeta);
    const auto meta = at::TensorOptions().device(at::kMeta);
    at::Tensor mine = at::empty({3}, meta);
    at::Tensor all = at::empty({6}, meta);
    EXPECT_TRUE(backend._allgather_base(all, mine)->wait());
    at::Tensor wrong = at::empty({5}, meta);
    EXPECT_THROW(backend._allgather_base(wrong, mine)->wait(), std::exception);
  });
}

}  // namespace
}  // namespace tessera
