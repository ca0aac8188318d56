// Uncached choice of a sharding rule's row: the cost of the first call of an op with a new
// sharding; and the time to load the rules.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/plan/plan.h"
#include "tessera/rules/choice/choose.h"
#include "tessera/rules/registry/registry.h"
#include "tests/rules/golden.h"

namespace {

using namespace tessera;

void measure(const std::string& mesh, const std::string& line, const std::string& shown) {
  const test::TextCall call(mesh, line);
  const auto* rule = rules::find_rule(call.op());
  std::vector<double> times;
  for (int i = 0; i < 51; ++i) {
    plan::clear_cache();
    const auto start = std::chrono::steady_clock::now();
    rules::choose(*rule, call.get());
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
            .count());
  }
  std::ranges::sort(times);
  std::printf("| %-16s | %-60s | %9.1f |\n", mesh.c_str(), shown.c_str(), times[25]);
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

/// Once per process: the tables are read when the first rule is requested, a line when its op is.
void measure_loading() {
  auto start = std::chrono::steady_clock::now();
  rules::find_rule("aten::mm");
  const double first = milliseconds_since(start);
  start = std::chrono::steady_clock::now();
  const auto ops = rules::ruled_ops();
  for (const auto& op : ops) rules::find_rule(op);
  std::printf("rules: %zu ops; the first look-up takes %.2f ms, all lines %.2f ms\n\n", ops.size(),
              first, milliseconds_since(start));
}

}  // namespace

int main() {
  measure_loading();
  std::printf("| mesh             | %-60s | cold us   |\n|---|---|---|\n", "call");
  const char* four = "a=2,b=2,c=2,d=2";
  for (const auto& [mesh, line] : std::vector<std::pair<std::string, std::string>>{
           {"tp=4", "aten::mm 64x32@S0 32x16@R"},
           {"tp=4", "aten::mm 64x32@S0 32x16@S0"},
           {"tp=4", "aten::add.Tensor 64x32@S0 64x32@S1"},
           {"dp=2,tp=4", "aten::mm 64x32@S0,R 32x16@R,S1"},
           {"dp=2,tp=4", "aten::mm 64x32@S0,S1 32x16@S0,S1"},
           {"a=2,b=2,c=2", "aten::mm 64x32@S0,S1,R 32x16@S1,S0,S0"},
           {four, "aten::mm 64x32@S0,S1,R,R 32x16@S1,S0,S0,R"},
           {four, "aten::mm 64x32@S0,S0,S1,R 32x16@S1,R,S0,P(sum)"},
           {four, "aten::add.Tensor 64x32@S0,S1,S0,S1 64x32@S1,S0,S1,S0"}}) {
    measure(mesh, line, line);
  }
  std::string list;
  for (int i = 0; i < 1'000; ++i) list += (i > 0 ? ";16x8@S0" : "16x8@S0");
  for (const std::string op : {"aten::stack", "aten::cat", "aten::_foreach_mul.Scalar"}) {
    measure("tp=4", op + " [" + list + "] dim=0", op + " of 1000 tensors");
  }
}
