#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/watched_call.h"

/// Variance over a sharded dim: two small messages, no gathered tensor.
namespace tessera::test {
namespace moments_test {

Function variance(std::vector<int64_t> dims, double correction) {
  return [=](const Tensors& x) {
    return dims.empty() ? at::var(x[0], std::nullopt, at::Scalar(correction))
                        : at::var(x[0], dims, at::Scalar(correction));
  };
}

TEST(Moments, OfAShardedDimAreThoseOfTheTensor) {
  for (const int64_t rows : {8, 7, 5, 2}) {  // even, uneven, with ranks that hold nothing
    for (const double correction : {0.0, 1.0, 1.5}) {
      const std::vector<Input> input = {{{rows, 3, 4}, "S0"}};
      check_call("tp=4",
                 {"var", variance({0}, correction), input, "R", "2 all_reduce on tp", "..."});
      check_call("tp=4", {"var of two dims", variance({0, 2}, correction), input, "R",
                          "2 all_reduce on tp", "..."});
      check_call("tp=4",
                 {"var of all", variance({}, correction), input, "R", "2 all_reduce on tp", "..."});
      check_call("tp=4", {"var of another dim", variance({1}, correction), input, "S0"});
    }
    check_call("tp=4", {"std",
                        [](const Tensors& x) { return x[0].std(0, true, true); },
                        {{{rows, 3}, "S0"}},
                        "R",
                        "2 all_reduce on tp",
                        "..."});
    check_call("tp=4", {"std_mean",
                        [](const Tensors& x) {
                          const auto [spread, mean] =
                              at::std_mean(x[0], at::IntArrayRef({0}), true);
                          return spread * 2 + mean;
                        },
                        {{{rows, 3}, "S0"}},
                        "R",
                        "2 all_reduce on tp",
                        "..."});
  }
}

TEST(Moments, OverTwoAxes) {
  check_calls("dp=2,tp=2",
              {{"both shard the dim", variance({0}, 1), {{{7, 3}, "S0,S0"}}, "R,R", "...", "..."},
               {"one shards another",
                variance({0}, 1),
                {{{6, 4}, "S0,S1"}},
                "R,S0",
                "2 all_reduce on dp",
                "..."},
               {"a partial sum comes first",
                [](const Tensors& x) { return at::mm(x[0], x[1]).var(0); },
                {{{6, 4}, "S0,S1"}, {{4, 5}, "R,S0"}},
                nullptr,
                "...",
                "..."}});
}

/// The mean is large beside the deviations: a sum of squares would lose them.
TEST(Moments, DoNotCancel) {
  check_call("tp=4", {"var around a million",
                      [](const Tensors& x) { return (x[0] * 1e-3 + 1e6).var(0) * 1e6; },
                      {{{9, 3}, "S0"}},
                      "R",
                      "...",
                      nullptr});
}

}  // namespace moments_test
}  // namespace tessera::test
