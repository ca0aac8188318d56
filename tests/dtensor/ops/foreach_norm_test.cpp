#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/watched_call.h"

/// Norms of a list, as gradient clipping takes them.
namespace tessera::test {
namespace foreach_norm_test {

TEST(ForeachNorm, OfShardsIsTheNormOfTheTensor) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double order : {0.0, 1.0, 2.0, 3.0, -1.0, kInfinity, -kInfinity}) {
    const Function norms = [order](const Tensors& x) {
      return at::stack(at::_foreach_norm(x, order));
    };
    for (const char* placements : {"S0,R", "S0,S1", "S0,S0", "R,R"}) {
      check_call("dp=2,tp=2",
                 {"norms of a list",
                  norms,
                  {{{4, 6}, placements}, {{5, 3}, "S0,R"}, {{7}, "R,S0"}, {{1}, "S0,R"}},
                  nullptr,
                  "...",
                  nullptr});
    }
  }
}

}  // namespace foreach_norm_test
}  // namespace tessera::test
