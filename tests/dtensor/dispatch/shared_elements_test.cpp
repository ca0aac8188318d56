// Writes to views whose elements share memory: as the plain op writes them, for all placements.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tessera/base/text.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"
#include "tests/support/training.h"

namespace tessera {
namespace shared_elements_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::spread;
using test::test_numbers;

using Write = void (*)(const at::Tensor& view, const at::Tensor& index, const at::Tensor& values);

struct Case {
  const char* what;
  at::Tensor (*view)(const at::Tensor& base);
  Write write;
};

at::Tensor placed(const at::Tensor& full, const DeviceMesh& mesh, const char* placements) {
  const Sharding as(mesh, parse_placements(placements), full.sizes().vec(), {.dtype = DType::f64});
  return from_local(test::part_of(full, as, *mesh.my_coordinate()), mesh,
                    parse_placements(placements), {.shape = full.sizes().vec()});
}

const Case kCases[] = {
    {"fill windows", [](const at::Tensor& x) { return x.unfold(1, 2, 1); },
     [](const at::Tensor& v, const at::Tensor& i, const at::Tensor&) {
       v.index_fill_(1, i, -1.0);
     }},
    {"fill rows of windows", [](const at::Tensor& x) { return x.unfold(1, 2, 1); },
     [](const at::Tensor& v, const at::Tensor& i, const at::Tensor&) {
       v.index_fill_(0, i, -1.0);
     }},
    {"add to windows", [](const at::Tensor& x) { return x.unfold(1, 2, 1); },
     [](const at::Tensor& v, const at::Tensor& i, const at::Tensor& y) { v.index_add_(1, i, y); }},
    {"fill an expanded tensor",
     [](const at::Tensor& x) {
       return x.expand({2, 4, 5});
     },
     [](const at::Tensor& v, const at::Tensor&, const at::Tensor&) {
       v.masked_fill_(v.select(0, 0).detach().clone() > 0, 7.0);
     }},
    {"fill windows of windows",
     [](const at::Tensor& x) { return x.unfold(0, 2, 1).unfold(0, 2, 1); },
     [](const at::Tensor& v, const at::Tensor& i, const at::Tensor&) {
       v.index_fill_(1, i, -1.0);
     }},
};

/// Whether a reshape of a result is a view depends on them.
TEST(SharedElements, ResultsOfOperandsThatMoveHaveTheStridesOfPlainOnes) {
  using View = at::Tensor (*)(const at::Tensor&);
  const View views[] = {
      [](const at::Tensor& x) {
        return x.t().expand({2, 5, 4});
      },
      [](const at::Tensor& x) {
        return x.t().unsqueeze(1).expand({5, 3, 4});
      },
      [](const at::Tensor& x) {
        return x.expand({3, 4, 5}).permute({2, 0, 1});
      },
      [](const at::Tensor& x) {
        return x.unsqueeze(-1).expand({4, 5, 3}).transpose(0, 1);
      },
      [](const at::Tensor& x) { return x.unfold(1, 2, 1).transpose(0, 1); },
      [](const at::Tensor& x) {
        return x.expand({3, 4, 5});
      },
  };
  const at::Tensor full = test_numbers({4, 5}, 1);
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    for (const View view : views) {
      for (const bool recorded : {true, false}) {
        const at::Tensor x = placed(full, mesh, "P(sum)").requires_grad_(recorded);
        const at::Tensor want = view(full).sin();
        const at::Tensor got = view(x).sin();
        EXPECT_EQ(got.strides(), want.strides());
        EXPECT_EQ(to_local(got).strides(), want.strides());
        EXPECT_TRUE(at::allclose(full_tensor(got), want));
        const at::NoGradGuard below_autograd;
        EXPECT_EQ(view(placed(full, mesh, "P(sum)")).cumsum(1).strides(),
                  view(full).cumsum(1).strides());
      }
    }
  });
}

TEST(SharedElements, AreWrittenAsOnOneRank) {
  const at::Tensor full = test_numbers({4, 5}, 1);
  const at::Tensor values = test_numbers({4, 2, 2}, 2);
  const at::Tensor index = at::tensor({0, 2}, at::kLong);
  for (const Case& test : kCases) {
    const at::Tensor expected = full.clone();
    test.write(test.view(expected), index, values);
    for (const char* placements :
         {"R,R", "S0,R", "S1,R", "S0,S1", "P(sum),R", "P(avg),S0", "P(max),S1", "P(sum),P(sum)"}) {
      run_ranks(6, [&](int) {  // 4 rows over 3: one rank has none
        const DeviceMesh mesh = init_device_mesh("dp=2,tp=3");
        const at::Tensor x = placed(full, mesh, placements);
        test.write(test.view(x), spread(index, mesh, "R,R"), spread(values, mesh, "R,R"));
        EXPECT_TRUE(at::allclose(full_tensor(x), expected))
            << test.what << " of " << placements << "\n"
            << full_tensor(x) << "\ninstead of\n"
            << expected;
      });
    }
  }
}

}  // namespace shared_elements_test
}  // namespace tessera
