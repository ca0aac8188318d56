// A Gloo backend that is dropped while its calls are under way, in one process.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tessera/transport/gloo.h"

namespace tessera::comm {
namespace gloo_end_test {

/// All messages then go over Gloo's links, which are the backend's own: a worker thread must not
/// use them after it.
TEST(GlooEnd, CallsEndBeforeTheBackendDoes) {
  for (const bool named : {true, false}) {
    named ? setenv("GLOO_SOCKET_IFNAME", "lo", 1) : unsetenv("GLOO_SOCKET_IFNAME");
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        auto backend = make_gloo_backend({.store = store,
                                          .index = rank,
                                          .size = 2,
                                          .timeout = std::chrono::seconds(30),
                                          .address = "127.0.0.1"});
        if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        std::vector<at::Tensor> sum = {at::ones({1 << 20})};
        const auto work = backend->allreduce(sum);  // asynchronous: a worker thread does it
        backend.reset();
        work->wait();
        EXPECT_TRUE(at::equal(sum[0], at::full({1 << 20}, 2.0F)));
      });
    }
    for (auto& rank : ranks) rank.join();
  }
  unsetenv("GLOO_SOCKET_IFNAME");
}

}  // namespace gloo_end_test
}  // namespace tessera::comm
