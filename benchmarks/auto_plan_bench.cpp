// The time that the search for a plan takes, and how far its result may be from the optimum: Llama
// with layers of 7B, of which the description alone is needed.
//
//   auto_plan_bench                          two layers, from the tests' data
//   auto_plan_bench MODEL.json [MESH ...]    models/model.json of any exported program
//                                            (compare_program.py: 32 layers)
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tessera/partition/search/propagate.h"

namespace {

using namespace tessera;
using partition::Assignment;
using Clock = std::chrono::steady_clock;

program::ExportedProgram read_description(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string model{std::istreambuf_iterator<char>(in), {}};
  return program::parse_program({model, R"({"config": {}})", R"({"config": {}})"}, path);
}

void measure(const program::ExportedProgram& program, const std::string& name,
             const std::string& mesh, double share) {
  partition::PropagateOptions options;
  const auto plan = partition::Plan::parse(R"({"rest": "auto"})", "plan");
  const DeviceMesh on = DeviceMesh::parse(mesh);
  if (share < 1) {
    const Assignment whole =
        partition::propagate(program, on, partition::Plan::parse("{}", "plan"));
    options.weight_limit =
        static_cast<int64_t>(share * static_cast<double>(whole.totals.weight_bytes));
  }
  const auto start = Clock::now();
  const Assignment found = partition::propagate(program, on, plan, options);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const auto& totals = found.totals;
  std::printf("%-22s %-16s %6.0f %% %9.1f ms %9.3f ms %7.3f %%\n", name.c_str(), mesh.c_str(),
              share * 100, seconds * 1e3, totals.seconds() * 1e3,
              100 * (totals.seconds() - totals.lower_bound) / totals.seconds());
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> files = {"tests/partition/data/llama_large.json",
                                    "tests/partition/data/llama_large_short.json"};
  std::vector<std::string> meshes = {"cuda:tp=8", "cuda:dp=2,tp=4"};
  if (argc > 1) files = {argv[1]};
  if (argc > 2) meshes.assign(argv + 2, argv + argc);
  std::printf("%-22s %-16s %8s %12s %12s %9s\n", "program", "mesh", "weights", "search", "plan",
              "gap");
  for (const auto& file : files) {
    const auto program = read_description(file);
    const std::string name = file.substr(file.rfind('/') + 1);
    for (const auto& mesh : meshes) {
      for (const double share : {1.0, 0.5, 0.2}) measure(program, name, mesh, share);
    }
  }
}
