// A view of a sharded tensor has the storage offset that the view of the whole tensor has.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace tessera {
namespace view_offset_test {

using test::test_numbers;

using View = std::function<at::Tensor(const at::Tensor&)>;

const std::vector<std::pair<const char*, View>> kViews = {
    {"x[1:]", [](const at::Tensor& x) { return x.slice(0, 1); }},
    {"x[:, 2:5:2]", [](const at::Tensor& x) { return x.slice(1, 2, 5, 2); }},
    {"x[1]", [](const at::Tensor& x) { return x.select(0, 1); }},
    {"x[1:][1:]", [](const at::Tensor& x) { return x.slice(0, 1).slice(0, 1); }},
    {"x.t()[2]", [](const at::Tensor& x) { return x.t().select(0, 2); }},
    {"x[1:].detach()", [](const at::Tensor& x) { return x.slice(0, 1).detach(); }},
    {"x[2:].view(-1)", [](const at::Tensor& x) { return x.slice(0, 2).view(-1); }},
    {"x.diagonal(1)", [](const at::Tensor& x) { return x.diagonal(1); }},
    {"x.split(2)[1]", [](const at::Tensor& x) { return x.split(2)[1]; }},
    {"x.unbind(1)[3]", [](const at::Tensor& x) { return x.unbind(1)[3]; }},
    {"x.unfold(1, 3, 2)[0][1]",
     [](const at::Tensor& x) { return x.unfold(1, 3, 2).select(0, 0).select(0, 1); }},
    {"x[1:].clone()", [](const at::Tensor& x) { return x.slice(0, 1).clone(); }},
    {"x[1:] * 2", [](const at::Tensor& x) { return x.slice(0, 1) * 2; }},
    {"x[1:].view(int32)", [](const at::Tensor& x) { return x.slice(0, 1).view(at::kInt); }},
    {"x[1:].view(complex)",
     [](const at::Tensor& x) {
       return at::view_as_complex(x.slice(0, 1).view({3, 3, 2}));
     }},
    {"x.view(complex)[1:].imag",
     [](const at::Tensor& x) {
       return at::imag(at::view_as_complex(x.view({4, 3, 2})).slice(0, 1));
     }},
    {"x.view(complex)[1:].view(real)",
     [](const at::Tensor& x) {
       return at::view_as_real(at::view_as_complex(x.view({4, 3, 2})).slice(0, 1));
     }},
    {"x[1:].expand",
     [](const at::Tensor& x) {
       return x.slice(0, 1).expand({2, 3, 6});
     }},
};

TEST(ViewOffset, IsThatOfTheViewOfTheWholeTensor) {
  const at::Tensor whole = test_numbers({4, 6}, 1);
  test::run_ranks(2, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    for (const Placement& placement : {Shard(0), Shard(1), Replicate()}) {
      const at::Tensor x = distribute_tensor(whole, mesh, {placement});
      for (const auto& [text, view] : kViews) {
        for (int round = 0; round < 2; ++round) {  // decided, then found
          const at::Tensor expected = view(whole);
          const at::Tensor found = view(x);
          EXPECT_EQ(found.storage_offset(), expected.storage_offset())
              << text << " of " << placement.to_text();
          EXPECT_TRUE(at::equal(full_tensor(found), expected)) << text;
        }
      }
    }
  });
}

TEST(ViewOffset, AViewByStridesCountsFromTheMemorysBegin) {
  const at::Tensor whole = test_numbers({4, 6}, 1);
  test::run_ranks(2, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor rows = distribute_tensor(whole, mesh, {Replicate()}).slice(0, 1);
    const at::Tensor expected = whole.slice(0, 1).as_strided({2, 2}, {6, 1}, 8);
    const at::Tensor found = rows.as_strided({2, 2}, {6, 1}, 8);
    EXPECT_EQ(found.storage_offset(), 8);
    EXPECT_TRUE(at::equal(full_tensor(found), expected));
    EXPECT_TRUE(at::equal(full_tensor(rows.as_strided({2, 2}, {6, 1})),
                          whole.slice(0, 1).as_strided({2, 2}, {6, 1})));
    EXPECT_ANY_THROW(rows.as_strided({2, 2}, {6, 1}, 2));
  });
}

}  // namespace view_offset_test
}  // namespace tessera
