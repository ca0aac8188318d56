// Worlds that end well print nothing, whichever rank hosts their store or ends first.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/comm/processes.h"
#include "tests/comm/process_links.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace quiet_end_test {

using testing::failures;
using testing::ProcessResult;
using testing::run_processes;
using testing::Scenario;

int rank_here() { return std::atoi(std::getenv("RANK")); }

std::shared_ptr<RankWorld> world_over(c10::intrusive_ptr<c10d::Store> store) {
  return make_process_world({.rank = rank_here(), .size = 2, .store = std::move(store)});
}

/// A store of the program's own, in the process of rank 0.
c10::intrusive_ptr<c10d::Store> hosted_by_first() {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT")));
  options.isServer = rank_here() == 0;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

void use(RankWorld& world) {
  std::vector<at::Tensor> tensors = {at::ones({3})};
  links_of(world).allreduce(tensors)->wait();
}

/// The rank that hosts the store ends at once, the other a little later.
const Scenario kGivenStore("given store", [] {
  auto world = world_over(hosted_by_first());
  use(*world);
  if (rank_here() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
});

const Scenario kOwnStore("own store", [] {
  auto world = process_world();
  use(*world);
  if (rank_here() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
});

/// The program never releases it, as a mesh in a variable of its own.
const Scenario kKept("kept", [] {
  static auto* kept = new auto(process_world());
  use(**kept);
  if (rank_here() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
});

/// Rank 1 has work to do for itself, longer than rank 0 waits for it, and then ends well.
const Scenario kLongAlone("long alone", [] {
  auto world = process_world();
  use(*world);
  if (rank_here() == 1) std::this_thread::sleep_for(std::chrono::seconds(6));
});

std::string said(const std::vector<ProcessResult>& results) {
  std::string out = failures(results);
  for (const ProcessResult& result : results) out += result.output;
  return out;
}

TEST(QuietEnd, OfAWorldThatHostsItsStore) { EXPECT_EQ(said(run_processes(kOwnStore, {})), ""); }

TEST(QuietEnd, OfAWorldThatTheProgramStillHolds) { EXPECT_EQ(said(run_processes(kKept, {})), ""); }

TEST(QuietEnd, OfARankThatOutlivesWhoHostsTheStore) {
  EXPECT_EQ(said(run_processes(kLongAlone, {.environment = {{"TESSERA_TIMEOUT_S", "1"}}})), "");
}

TEST(QuietEnd, OfAWorldOverAStoreThatTheProgramHosts) {
  EXPECT_EQ(said(run_processes(kGivenStore, {})), "");
}

}  // namespace quiet_end_test
}  // namespace tessera::comm
