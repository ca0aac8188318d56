#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/watched_call.h"

/// Norms of a list, as gradient clipping takes them.
namespace tessera::test {
namespace {

TEST(ForeachNorm, OfShardsIsTheNormOfTheTensor) {
  for (const double order : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    const Function norms = [order](const Tensors& x) {
      return at::stack(at::_foreach_norm(x, order));
    };
    for (const char* placements : {"S0,R", "S0,S1", "S0,S0", "R,R"}) {
      check_call("dp=2,tp=2", {"norms of a list",
                               norms,
                               {{{4, 6}, placements}, {{5, 3}, "S0,R"}, {{7}, "R,S0"}},
                               nullptr,
                               "...",
                               nullptr});
    }
  }
}

}  // namespace
}  // namespace tessera::test
