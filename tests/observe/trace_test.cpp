// The trace is JSON that a viewer can read: it is parsed back here.
#include "tessera/observe/trace.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/errors.h"
#include "tessera/observe/call_site.h"
#include "tessera/observe/recorder.h"
#include "tessera/observe/tap.h"
#include "tests/observe/scripted_backend.h"

namespace tessera::comm {
namespace trace_test {

using nlohmann::json;
using Tensors = std::vector<at::Tensor>;

struct Tapped {
  explicit Tapped(int rank = 0) : observers(rank) {}

  Observers observers;
  c10::intrusive_ptr<ScriptedBackend> inner = c10::make_intrusive<ScriptedBackend>();
  c10::intrusive_ptr<c10d::Backend> outer = tap(
      inner, {.ranks = {0, 1}, .index = 0, .name = "g \"quoted\"", .world_name = "w"}, observers);

  c10::intrusive_ptr<c10d::Work> all_reduce() {
    Tensors t = {at::ones({2, 3})};
    return outer->allreduce(t);
  }
};

std::vector<json> calls_of(const json& trace) {
  std::vector<json> calls;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") calls.push_back(event);
  }
  return calls;
}

TEST(Trace, HoldsEveryCallWithItsTimesAndArguments) {
  Tapped tapped(5);
  Recorder recorder(tapped.observers);
  {
    CallSite site({.op = "aten::mm", .axis = "tp", .implicit = true});
    tapped.all_reduce()->wait();
  }
  const auto calls = calls_of(json::parse(trace_json(recorder)));
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].at("name"), "all_reduce tp");
  EXPECT_EQ(calls[0].at("pid"), 5);
  EXPECT_GE(calls[0].at("dur").get<double>(), 0.0);
  EXPECT_EQ(calls[0].at("args").at("group"), "g \"quoted\"");
  EXPECT_EQ(calls[0].at("args").at("asked by"), "aten::mm");
  EXPECT_EQ(calls[0].at("args").at("bytes"), 24);
  EXPECT_EQ(calls[0].at("args").at("in"), json::parse("[[2,3]]"));
}

TEST(Trace, CallsThatOverlapAreInDifferentLanes) {
  Tapped tapped;
  Recorder recorder(tapped.observers);
  auto first = tapped.all_reduce();
  auto second = tapped.all_reduce();
  second->wait();
  first->wait();
  tapped.all_reduce()->wait();
  const auto calls = calls_of(json::parse(trace_json(recorder)));
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_NE(calls[0].at("tid"), calls[1].at("tid"));
  EXPECT_EQ(calls[2].at("tid"), calls[0].at("tid"));
}

TEST(Trace, ManyRanksGoIntoOne) {
  Tapped a(0);
  Tapped b(1);
  Recorder first(a.observers);
  Recorder second(b.observers);
  a.all_reduce()->wait();
  b.all_reduce();  // never waited for
  const std::vector<const Recorder*> both = {&first, &second};
  const auto calls = calls_of(json::parse(trace_json(both)));
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].at("pid"), 0);
  EXPECT_EQ(calls[1].at("pid"), 1);
  EXPECT_TRUE(calls[1].at("args").at("in flight"));
}

TEST(Trace, TextThatIsNotUtf8DoesNotCostTheTrace) {
  Tapped tapped;
  Recorder recorder(tapped.observers);
  CallSite site({.op = "bad \xff byte"});
  tapped.all_reduce()->wait();
  EXPECT_EQ(calls_of(json::parse(trace_json(recorder))).size(), 1u);
}

TEST(Trace, GoesToAFileOrSaysWhyNot) {
  Tapped tapped;
  Recorder recorder(tapped.observers);
  tapped.all_reduce()->wait();
  const Recorder* const one = &recorder;
  const auto path = std::filesystem::temp_directory_path() / "tessera_trace_test.json";
  write_trace(path, {&one, 1});
  std::ifstream file(path);
  EXPECT_EQ(calls_of(json::parse(file)).size(), 1u);
  std::filesystem::remove(path);
  EXPECT_THROW(write_trace("/no/such/folder/trace.json", {&one, 1}), InvalidArgument);
}

}  // namespace trace_test
}  // namespace tessera::comm
