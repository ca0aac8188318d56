// Programs that were exported on the CPU, moved to a CUDA device as a whole.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/interp/program.h"
#include "tests/support_pure/expect_error.h"

namespace tessera {
namespace cuda_test {

class ProgramOnCuda : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  }
};
INSTANTIATE_TEST_SUITE_P(Program, ProgramOnCuda,
                         ::testing::Values("block", "block_core", "block_dynamic"),
                         [](const auto& info) { return info.param; });

TEST_P(ProgramOnCuda, ComputesWhatItDoesOnTheCpu) {
  const std::string path = "tests/program/data/" + GetParam() + ".pt2";
  Program here = Program::load(path);
  Program there = Program::load(path, {.device = c10::Device(c10::kCUDA, 0)});
  const at::Tensor tokens = at::randint(0, 10, {2, 6}, at::kLong);
  const at::Tensor shift = at::randn({8});
  for (int run = 1; run <= 2; ++run) {
    const auto expected = here.run({tokens, shift});
    const auto found = there.run({tokens.cuda(), shift.cuda()});
    EXPECT_TRUE(found[0].toTensor().is_cuda());
    EXPECT_TRUE(at::allclose(found[0].toTensor().cpu(), expected[0].toTensor(), 1e-4, 1e-5));
    EXPECT_EQ(there.tensor("calls").item<float>(), run);
  }
  EXPECT_EQ(there.tensor("embed.weight").data_ptr(), there.tensor("head.weight").data_ptr());
  test::expect_error<InvalidArgument>(
      [&] {
        there.run({tokens, shift});
      },
      {"on cuda:0", "move it"});
}

}  // namespace cuda_test
}  // namespace tessera
