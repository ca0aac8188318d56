// Messages run beside computing: shown by the order of events, not by time.
#include "tessera/fsdp/overlap.h"

#include <gtest/gtest.h>

#include "tessera/fsdp/gather_scheduler.h"
#include "tests/fsdp/training.h"

namespace tessera::test {
namespace overlap_test {

using fsdp::StepLog;
using What = StepLog::What;
using When = StepLog::When;

/// How many messages of a kind were started, and before how many waits a group was used meanwhile.
struct Overlap {
  int messages = 0;
  int hidden = 0;
  bool operator==(const Overlap&) const = default;
};

Overlap overlap_of(What kind, const std::vector<StepLog::Event>& events) {
  Overlap out;
  for (auto start = events.begin(); start != events.end(); ++start) {
    if (start->what != kind || start->when != When::starts) continue;
    ++out.messages;
    bool used = false;
    for (auto event = start + 1; event != events.end(); ++event) {
      if (event->what == What::use) used = true;
      if (event->what == kind && event->of == start->of && event->when == When::awaited) break;
    }
    out.hidden += used ? 1 : 0;
  }
  return out;
}

std::ostream& operator<<(std::ostream& out, const Overlap& o) {
  return out << o.hidden << " of " << o.messages;
}

TEST(FullyShardOverlap, GathersAndReductionsRunWhileGroupsAreUsed) {
  for (const char* text : {"dp=2", "dp=2,fs=2"}) {
    const int ranks = DeviceMesh::parse(text).size();
    run_ranks(ranks, [&](int rank) {
      const DeviceMesh mesh = init_device_mesh(text);
      const Batch mine = make_batch(8, 6, 4).part(rank, ranks);
      auto net = make_mlp({6, 8, 7, 9, 4});
      shard_layers(net, mesh, kUnmerged);
      auto optimizer = sgd()(net->parameters());
      train(forward_of(net), *optimizer, mine, 1);
      const StepTrace trace(mesh);
      const Recorder recorder(*comm::current_world());
      train(forward_of(net), *optimizer, mine, 1);
      const auto& events = fsdp::GatherScheduler::of(mesh)->log()->events();
      // Four in forward, two in backward; nothing is used before the first.
      EXPECT_EQ(overlap_of(What::gather, events), (Overlap{6, 5})) << text;
      // Of two messages each where there are replicas. After those of the last two
      // groups nothing is used: the first layer needs no gradient of its input.
      const int each = ranks == 2 ? 1 : 2;
      const Overlap reductions = overlap_of(What::reduction, events);
      EXPECT_EQ(reductions.messages, 4 * each) << text;
      EXPECT_GE(reductions.hidden, 2) << text;
      const CommunicationTime time = communication_time(recorder);
      EXPECT_EQ(time.gathers.messages, 6);
      EXPECT_EQ(time.reductions.messages, 4 * each);
      EXPECT_GT(time.gathers.exposed_s, 0);
      EXPECT_LE(time.gathers.exposed_s, time.gathers.under_way_s);
      EXPECT_LE(time.reductions.exposed_s, time.reductions.under_way_s);
      EXPECT_TRUE(time.hidden() >= 0 && time.hidden() <= 1) << time.hidden();
      const double all = std::chrono::duration<double>(recorder.exposed()).count();
      EXPECT_NEAR(time.gathers.exposed_s + time.reductions.exposed_s, all, 1e-9)
          << "a step of nothing else: " << recorder.to_text();
      const std::string json = trace.json();
      for (const char* part : {"forward of group 0", "forward of group 3", "backward of group 1",
                               "all_gather", "reduce_scatter"}) {
        EXPECT_NE(json.find(part), std::string::npos) << part;
      }
    });
  }
}

TEST(FullyShardOverlap, ATraceThatBeginsBeforeTheModuleIsShardedHasItsGroups) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const StepTrace trace(mesh);
    auto net = make_mlp({6, 8, 4});
    shard_layers(net, mesh, kUnmerged);
    auto optimizer = sgd()(net->parameters());
    train(forward_of(net), *optimizer, make_batch(8, 6, 4).part(rank, 2), 1);
    EXPECT_NE(trace.json().find("forward of group 0"), std::string::npos);
  });
}

TEST(FullyShardOverlap, ATraceInsideAnotherLeavesItAsItIs) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({6, 8, 4});
    shard_layers(net, mesh, kUnmerged);
    const Batch mine = make_batch(8, 6, 4).part(rank, 2);
    auto optimizer = sgd()(net->parameters());
    const auto steps_in = [](const StepTrace& trace) {
      const std::string json = trace.json();
      int steps = 0;
      for (size_t at = 0; (at = json.find("\"forward of group 0\"", at)) != std::string::npos;
           ++at) {
        ++steps;
      }
      return steps;
    };
    const StepTrace outer(mesh);
    train(forward_of(net), *optimizer, mine, 1);
    {
      const StepTrace inner(mesh);
      train(forward_of(net), *optimizer, mine, 1);
      EXPECT_EQ(steps_in(inner), 1);
      EXPECT_EQ(steps_in(outer), 2);
    }
    train(forward_of(net), *optimizer, mine, 1);
    EXPECT_EQ(steps_in(outer), 3);
  });
}

TEST(FullyShardOverlap, PrefetchesInAnOrderOfOnesOwn) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch batch = make_batch(8, 6, 4);
    auto plain = make_mlp({6, 8, 7, 9, 4});
    auto net = make_mlp({6, 8, 7, 9, 4});
    shard_layers(net, mesh, kUnmerged);
    const auto layers = layers_of(net);
    const std::vector<torch::nn::Module*> next_two = {layers[1], layers[2]};
    const std::vector<torch::nn::Module*> none;
    const std::vector<torch::nn::Module*> first = {layers[0]};
    set_modules_to_forward_prefetch(*layers[0], next_two);
    set_modules_to_forward_prefetch(*layers[2], none);
    set_modules_to_backward_prefetch(*layers[2], first);
    auto alone = sgd()(plain->parameters());
    auto optimizer = sgd()(net->parameters());
    for (int step = 0; step < 3; ++step) {
      train(forward_of(plain), *alone, batch, 1);
      const StepTrace trace(mesh);
      train(forward_of(net), *optimizer, batch.part(rank, 2), 1);
      std::vector<size_t> at_once;  // gathers that start before the first use
      std::vector<size_t> beside_third;
      size_t used = 99;
      for (const auto& event : fsdp::GatherScheduler::of(mesh)->log()->events()) {
        if (event.what == What::use && !event.backward) used = event.of;
        if (event.what != What::gather || event.when != When::starts || event.backward) continue;
        if (used == 99) at_once.push_back(event.of);
        if (used == 1) beside_third.push_back(event.of);
      }
      EXPECT_EQ(at_once, (std::vector<size_t>{0, 1, 2})) << "step " << step;
      EXPECT_EQ(beside_third, std::vector<size_t>{}) << "step " << step;
    }
    EXPECT_EQ(parameters_differ(*net, *plain), "");
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

}  // namespace overlap_test
}  // namespace tessera::test
