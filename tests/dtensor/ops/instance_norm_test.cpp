// instance_norm with running statistics, of any placements: where implicit communication is
// forbidden it is refused before anything is sent or written.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <string>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/policy.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"

namespace tessera {
namespace instance_norm_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::whole_numbers;

struct Statistics {
  at::Tensor mean = at::zeros({6}, at::kDouble);
  at::Tensor var = at::ones({6}, at::kDouble);
};

at::Tensor norm(const at::Tensor& x, const Statistics& running) {
  return at::instance_norm(x, {}, {}, running.mean, running.var, /*use_input_stats=*/true, 0.5,
                           1e-5, false);
}

TEST(InstanceNorm, SendsNothingWhereThatIsForbidden) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor full = whole_numbers({4, 6, 4, 4}, 3);
    Statistics expected;
    const at::Tensor plain = norm(full, expected);
    int refused = 0;
    for (const Placement& of_input :
         {Placement(Shard(0)), Placement(Shard(1)), Placement(Shard(2)), Placement(Replicate())}) {
      for (const Placement& of_mean : {Placement(Shard(0)), Placement(Replicate())}) {
        for (const Placement& of_var : {Placement(Shard(0)), Placement(Replicate())}) {
          const at::Tensor x = distribute_tensor(full, mesh, {of_input});
          const Statistics fresh;
          const Statistics running{distribute_tensor(fresh.mean, mesh, {of_mean}),
                                   distribute_tensor(fresh.var, mesh, {of_var})};
          const std::string what =
              of_input.to_text() + " " + of_mean.to_text() + " " + of_var.to_text();
          const at::Tensor here = to_local(distribute_tensor(plain, mesh, {of_input}));
          comm::Recorder recorder(*comm::current_world());
          bool is_refused = false;
          try {
            const CommPolicy explicit_only(ImplicitComm::forbid);
            EXPECT_TRUE(at::allclose(to_local(norm(x, running)), here)) << what;
          } catch (const NotSupported& error) {
            is_refused = true;
            EXPECT_NE(std::string(error.what()).find("forbidden"), std::string::npos)
                << error.what();
          }
          EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "") << what;
          if (is_refused) {
            ++refused;
            EXPECT_TRUE(at::equal(full_tensor(running.mean), fresh.mean)) << what;
            EXPECT_TRUE(at::equal(full_tensor(running.var), fresh.var)) << what;
            EXPECT_TRUE(at::allclose(full_tensor(norm(x, running)), plain)) << what;
          }
          EXPECT_TRUE(at::allclose(full_tensor(running.mean), expected.mean)) << what;
          EXPECT_TRUE(at::allclose(full_tensor(running.var), expected.var)) << what;
        }
      }
    }
    EXPECT_GE(refused, 10);
  });
}

}  // namespace instance_norm_test
}  // namespace tessera
