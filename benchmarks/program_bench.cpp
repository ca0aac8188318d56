// What running an exported program costs over its ops: chains of one op on tiny tensors, as a
// program and as direct calls in turns.
//
//   program_bench                  the table
//   program_bench once M.pt2       loads the program and runs it once on zeros (compare_program.py)
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tessera/interp/program.h"

namespace {

using namespace tessera;
using program::ArgKind;
using program::Argument;
using program::ValueId;
using Clock = std::chrono::steady_clock;
using Args = std::vector<program::NamedArgument>;

constexpr int kNodes = 256;
constexpr int kRounds = 60;
constexpr const char* kFile = "tests/program/data/linear.pt2";  // linear(f32 4x3)

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// input -> target(., args) -> target(., args) -> ...
Program chain_of(const std::string& target, const std::string& first, const Args& args) {
  const auto archive = program::Archive::open(kFile);
  program::ExportedProgram exported = archive->read_program();
  auto& graph = exported.graph;
  ValueId last = graph.nodes[0].find("input")->as<ValueId>();
  graph.nodes.clear();
  for (int i = 0; i < kNodes; ++i) {
    program::Value value = graph.value(*graph.find_value("input"));
    value.name = "value_" + std::to_string(i);
    const ValueId id = graph.add_value(value);
    program::Node node;
    node.target = target;
    node.name = value.name;
    node.inputs = {{first, Argument::of_tensor(last), {}}};
    node.inputs.insert(node.inputs.end(), args.begin(), args.end());
    node.outputs = {Argument::of_tensor(id)};
    graph.nodes.push_back(std::move(node));
    last = id;
  }
  graph.outputs = {Argument::of_tensor(last)};
  exported.signature.outputs[0].arg = graph.outputs[0];
  return Program::from(std::move(exported), archive);
}

struct Row {
  const char* name;
  std::string target;
  std::string first;
  Args args;
  std::function<at::Tensor(const at::Tensor&)> direct;
};

void measure(const Row& row) {
  Program program = chain_of(row.target, row.first, row.args);
  const at::Tensor x = at::zeros({4, 3});
  double ours = std::numeric_limits<double>::infinity();
  double direct = ours;
  for (int round = 0; round < kRounds; ++round) {
    auto start = Clock::now();
    program.run({x});
    ours = std::min(ours, microseconds_since(start));
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowAutograd below_autograd;
    start = Clock::now();
    at::Tensor y = x;
    for (int i = 0; i < kNodes; ++i) y = row.direct(y);
    direct = std::min(direct, microseconds_since(start));
  }
  std::printf("%-22s %8.3f %8.3f %8.3f\n", row.name, ours / kNodes, direct / kNodes,
              (ours - direct) / kNodes);
}

void table() {
  at::set_num_threads(1);
  const Argument size{ArgKind::ints, std::vector<int64_t>{4, 3}};
  const Argument width{ArgKind::ints, std::vector<int64_t>{3}};
  std::printf("microseconds a node, least of %d runs of %d nodes\n", kRounds, kNodes);
  std::printf("%-22s %8s %8s %8s\n", "op", "program", "direct", "above");
  const std::vector<Row> rows = {
      {"relu", "torch.ops.aten.relu.default", "self", {}, [](auto& x) { return at::relu(x); }},
      {"add a number",
       "torch.ops.aten.add.Tensor",
       "self",
       {{"other", Argument::of_int(1), {}}},
       [](auto& x) { return at::add(x, 1); }},
      {"view",
       "torch.ops.aten.view.default",
       "self",
       {{"size", size, {}}},
       [](auto& x) {
         return x.view({4, 3});
       }},
      {"softmax",
       "torch.ops.aten.softmax.int",
       "self",
       {{"dim", Argument::of_int(-1), {}}},
       [](auto& x) { return at::softmax(x, -1); }},
      {"layer_norm",
       "torch.ops.aten.layer_norm.default",
       "input",
       {{"normalized_shape", width, {}}},
       [](auto& x) { return at::layer_norm(x, {3}); }},
      {"mul by itself",
       "torch.ops.aten.square.default",
       "self",
       {},
       [](auto& x) { return x.square(); }},
  };
  for (const auto& row : rows) measure(row);
}

void once(const char* path) {
  const auto start = Clock::now();
  Program program = Program::load(path);
  const double loaded = microseconds_since(start);
  Program::Values inputs;
  for (const auto& port : program.inputs()) {
    std::vector<int64_t> shape;
    for (const auto& one : port.tensor->sizes) shape.push_back(one.hint().value_or(2));
    inputs.emplace_back(at::zeros(shape, static_cast<c10::ScalarType>(port.tensor->dtype)));
  }
  const auto begin = Clock::now();
  program.run(std::move(inputs));
  const double ran = microseconds_since(begin);
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM")) std::printf("%s\n", line.c_str());
  }
  std::printf("loaded in %.1f ms, ran in %.1f ms\n", loaded / 1e3, ran / 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "once") {
    once(argv[2]);
  } else {
    table();
  }
}
