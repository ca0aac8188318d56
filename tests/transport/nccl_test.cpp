// CUDA tensors between processes: NCCL where there is one, Gloo on any CUDA libtorch. Skipped
// without a GPU. One GPU is enough, so NCCL itself is only tried with one rank.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tessera/observe/recorder.h"
#include "tessera/observe/tap.h"
#include "tessera/transport/cuda_backend.h"
#include "tessera/transport/gloo.h"
#include "tests/comm/process_links.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace nccl_test {

using testing::error_of;
using testing::failures;
using testing::mark;
using testing::run_processes;
using testing::Scenario;

bool no_gpu() { return !at::globalContext().hasCUDA() || !has_nccl(); }

NcclOptions one_rank() {
  return {.store = c10::make_intrusive<c10d::HashStore>(),
          .index = 0,
          .size = 1,
          .device = 0,
          .timeout = std::chrono::seconds(30),
          .group_name = "g"};
}

TEST(Nccl, IsNotSupportedWhereThereIsNone) {
  if (has_nccl()) GTEST_SKIP() << "there is one";
  EXPECT_TRUE(error_of([] { make_nccl_backend(one_rank()); }).starts_with("NotSupported: group g"));
}

TEST(Nccl, ReducesThroughATap) {
  if (no_gpu()) GTEST_SKIP() << "no GPU";
  Observers observers;
  auto links = tap(make_nccl_backend(one_rank()),
                   {.ranks = {0}, .index = 0, .name = "g", .world_name = "w"}, observers);
  Recorder recorder(observers);
  Tensors t = {at::ones({4}, at::kCUDA)};
  links->allreduce(t)->wait();
  EXPECT_EQ(t[0].sum().item<float>(), 4.0f);
  c10d::AllreduceOptions blocking;
  blocking.asyncOp = false;
  if (auto work = links->allreduce(t, blocking)) work->wait();
  EXPECT_EQ(t[0].sum().item<float>(), 4.0f);
  EXPECT_EQ(recorder.count(CommOp::all_reduce), 2);
  links->shutdown();
}

TEST(Nccl, ADeviceThatIsNotThereIsTheCallersMistake) {
  if (no_gpu()) GTEST_SKIP() << "no GPU";
  auto options = one_rank();
  options.device = 99;
  EXPECT_TRUE(error_of([&] {
                make_nccl_backend(options);
              }).starts_with("InvalidArgument: group g: this rank's CUDA device is 99"));
}

/// Two ranks that share a GPU: NCCL refuses, and says so without a crash.
const Scenario kSharedGpu("shared_gpu", [] {
  auto world = process_world();
  Tensors t = {at::ones({4}, at::device(at::kCUDA).dtype(at::kFloat))};
  auto& links = links_of(*world, c10::DeviceType::CUDA);
  mark(error_of([&] { links.allreduce(t)->wait(); }));
  close_process_world();
});

TEST(Nccl, TwoRanksOnOneGpuGetAnErrorThatNamesTheCall) {
  if (no_gpu()) GTEST_SKIP() << "no GPU";
  const auto results = run_processes(kSharedGpu, {.size = 2, .environment = {{"LOCAL_RANK", "0"}}});
  for (const auto& result : results) {
    EXPECT_TRUE(result.says("all_reduce (sum) of 4 float32 in group")) << result.to_text();
  }
}

/// The same two over Gloo, which goes through host memory.
const Scenario kGlooCuda("gloo_cuda", [] {
  auto world = process_world();
  const int me = world->rank();
  auto store = c10::make_intrusive<c10d::PrefixStore>("gloo", own_store(/*host=*/false));
  auto links = make_gloo_backend({.store = std::move(store),
                                  .index = me,
                                  .size = 2,
                                  .timeout = std::chrono::seconds(30),
                                  .address = "127.0.0.1"});
  const auto cuda = at::device(at::kCUDA).dtype(at::kFloat);
  Tensors t = {at::full({4}, me + 1, cuda)};
  links->allreduce(t)->wait();
  EXPECT_EQ(t[0].sum().item<float>(), 12.0f);
  auto mine = at::full({2}, me, cuda);
  auto all = at::empty({4}, cuda);
  links->_allgather_base(all, mine)->wait();
  EXPECT_EQ(all.sum().item<float>(), 2.0f);
  std::vector<int64_t> even;
  auto given = at::full({4}, me, cuda);
  auto taken = at::empty({4}, cuda);
  links->alltoall_base(taken, given, even, even)->wait();
  EXPECT_EQ(taken.sum().item<float>(), 2.0f);
});

TEST(Nccl, GlooTakesCudaTensorsToo) {
  if (no_gpu()) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(failures(run_processes(kGlooCuda, {.size = 2})), "");
}

}  // namespace nccl_test
}  // namespace tessera::comm
