#include "tessera/comm/rank_generator.h"

#include "tessera/comm/threads.h"
#include "tests/comm/rank_data.h"

namespace tessera {
namespace rank_generator_test {

using comm::run_ranks;
using test::same;
using test::Tensors;

/// Draws in as many ways as there are, forward and under autograd.
Tensors draws() {
  Tensors all;
  all.push_back(at::randn({5}));
  all.push_back(at::rand({5}, at::kDouble));
  all.push_back(at::rand_like(all[0]));
  all.push_back(at::randn_like(all[0]));
  all.push_back(at::randint(100, {7}));
  all.push_back(at::randperm(20));
  all.push_back(at::normal(0.0, 1.0, {4}));
  all.push_back(at::normal(at::zeros({4}), at::ones({4})));
  all.push_back(at::empty({40}).normal_(1.0, 2.0));  // long enough for the vectorised way
  all.push_back(at::empty({4}).uniform_());
  all.push_back(at::empty({4}).exponential_());
  all.push_back(at::empty({40}).bernoulli_(0.5));
  all.push_back(at::bernoulli(at::full({9}, 0.4)));
  all.push_back(at::multinomial(at::ones({10}), 5));
  all.push_back(at::poisson(at::full({9}, 4.0)));
  all.push_back(at::dropout(at::ones({30}), 0.5, /*train=*/true));
  all.push_back(std::get<0>(at::native_dropout(at::ones({30}), 0.5, true)));
  all.push_back(at::rrelu(at::ones({20}).neg(), 0.1, 0.3, /*training=*/true));
  at::Tensor leaf = at::ones({30}).requires_grad_();
  at::Tensor y = at::dropout(leaf * 2, 0.3, /*train=*/true);
  y.sum().backward();
  all.push_back(y.detach());
  all.push_back(leaf.grad());
  at::Tensor out = at::empty({6});
  all.push_back(at::randn_out(out, {6}));
  return all;
}

TEST(RankGenerator, RanksThatDrawAtTheSameTimeEachGetTheSequenceOfOneProcess) {
  at::manual_seed(7);
  const Tensors want = draws();
  const Tensors more = draws();
  at::manual_seed(7);
  run_ranks(4, [&](int) {
    for (const auto& expected : {want, more}) {
      const Tensors got = draws();
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same(got[i], expected[i])) << i;
    }
  });
  const Tensors mine = draws();  // the process's own generator was not touched
  for (size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(same(mine[i], want[i])) << i;
}

TEST(RankGenerator, ManualSeedIsOfTheCallingRankAlone) {
  at::manual_seed(1);
  const at::Tensor of_one = at::randn({4});
  comm::manual_seed(2);  // outside of ranks: the process's
  const at::Tensor of_two = at::randn({4});
  run_ranks(3, [&](int rank) {
    if (rank == 1) comm::manual_seed(1);
    EXPECT_TRUE(same(at::randn({4}), rank == 1 ? of_one : of_two));
  });
}

TEST(RankGenerator, AGivenGeneratorIsUsed) {
  auto given = at::make_generator<at::CPUGeneratorImpl>(5);
  const at::Tensor want = at::randn({4}, given);
  run_ranks(2, [&](int) {
    auto own = at::make_generator<at::CPUGeneratorImpl>(5);
    EXPECT_TRUE(same(at::randn({4}, own), want));
  });
}

TEST(RankGenerator, DefaultGeneratorIsTheOneThatOpsUse) {
  run_ranks(2, [&](int rank) {
    comm::manual_seed(40 + static_cast<uint64_t>(rank));
    const at::Tensor implicit = at::randn({4});
    comm::manual_seed(40 + static_cast<uint64_t>(rank));
    EXPECT_TRUE(same(at::randn({4}, comm::default_generator()), implicit));
    EXPECT_EQ(comm::default_generator().current_seed(), 40U + static_cast<uint64_t>(rank));
  });
}

TEST(RankGenerator, OtherThreadsAreLeftAlone) {
  at::manual_seed(3);
  const auto mode = c10::DispatchKey::TESTING_ONLY_GenericMode;
  run_ranks(2, [&](int) { EXPECT_TRUE(c10::impl::tls_is_dispatch_key_included(mode)); });
  EXPECT_FALSE(c10::impl::tls_is_dispatch_key_included(mode));
}

TEST(RankGenerator, AWorldInsideAWorldDrawsFromItsOwn) {
  at::manual_seed(9);
  const at::Tensor want = at::randn({4});
  run_ranks(2, [&](int) {
    comm::manual_seed(9);
    run_ranks(2, [&](int) {
      comm::manual_seed(9);
      EXPECT_TRUE(same(at::randn({4}), want));
    });
    EXPECT_TRUE(same(at::randn({4}), want));
  });
}

TEST(RankGenerator, ADeviceThatIsNotThereLeavesNothingBehind) {
  const c10::Device far_away(c10::kCUDA, 100);
  run_ranks(2, [&](int) {
    EXPECT_ANY_THROW(comm::default_generator(far_away));
    comm::manual_seed(7);
    EXPECT_EQ(comm::default_generator().current_seed(), 7U);
  });
}

}  // namespace rank_generator_test
}  // namespace tessera
