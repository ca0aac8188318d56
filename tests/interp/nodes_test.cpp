// Programs whose nodes were changed: what loading refuses, and what it accepts as Python does.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/comm/threads.h"
#include "tessera/interp/program.h"
#include "tests/support_pure/expect_error.h"

namespace tessera {
namespace nodes_test {

using program::ArgKind;
using program::Argument;
using program::ExportedProgram;
using program::Node;
using program::ValueId;
using test::expect_error;

std::shared_ptr<const program::Archive> open(const std::string& name) {
  return program::Archive::open("tests/program/data/" + name + ".pt2");
}

/// The program with `change` made to it.
template <typename Change>
Program changed(const std::string& name, const Change& change, const ProgramOptions& options = {}) {
  const auto archive = open(name);
  ExportedProgram exported = archive->read_program();
  change(exported);
  return Program::from(std::move(exported), archive, options);
}

Argument& argument(Node& node, const std::string& name) {
  for (auto& input : node.inputs) {
    if (input.name == name) return input.arg;
  }
  throw std::out_of_range(name);
}

TEST(Nodes, AnUnknownOperatorIsRefused) {
  const auto with_target = [](const std::string& target) {
    changed("linear", [&](ExportedProgram& p) { p.graph.nodes[0].target = target; });
  };
  const std::string_view place = "linear.pt2: models/model.json: node 0 (linear)";
  expect_error<InvalidArgument>([&] { with_target("torch.ops.aten.lineal.default"); },
                                {place, "no operator aten::lineal"});
  expect_error<InvalidArgument>([&] { with_target("torch.ops.aten.linear.out_of"); },
                                {place, "aten::linear.out_of"});
  expect_error<InvalidArgument>([&] { with_target("os.system"); }, {place, "not an operator"});
  expect_error<InvalidArgument>([&] { with_target(""); }, {"no target"});
}

TEST(Nodes, ArgumentsFollowTheSchema) {
  const auto with = [](const auto& change) {
    changed("linear", [&](ExportedProgram& p) { change(p.graph.nodes[0]); });
  };
  expect_error<InvalidArgument>(
      [&] { with([](Node& n) { n.inputs.erase(n.inputs.begin() + 1); }); },
      {"node 0", "argument weight of type Tensor is missing"});
  expect_error<InvalidArgument>([&] { with([](Node& n) { n.inputs[1].name = "weights"; }); },
                                {"node 0", "has no argument weights", "aten::linear(Tensor input"});
  expect_error<InvalidArgument>(
      [&] { with([](Node& n) { argument(n, "weight") = Argument::of_string("w"); }); },
      {"node 0", "argument weight is of type Tensor", "as_string"});
  expect_error<InvalidArgument>([&] { with([](Node& n) { n.outputs.push_back(n.outputs[0]); }); },
                                {"defines linear again"});
  expect_error<InvalidArgument>([&] { with([](Node& n) { n.outputs.clear(); }); }, {"linear"});
}

TEST(Nodes, AnArgumentThatIsLeftOutTakesItsDefault) {
  Program program = changed("linear", [](ExportedProgram& p) {
    p.graph.nodes[0].inputs.pop_back();  // bias
  });
  const at::Tensor x = at::randn({4, 3});
  EXPECT_TRUE(at::equal(program.run({x})[0].toTensor(), at::linear(x, program.tensor("weight"))));
}

TEST(Nodes, NumbersOfAnotherKindAreConvertedOrRefused) {
  const auto softmax_dim = [](const Argument& dim) {
    return changed("masked", [&](ExportedProgram& p) { argument(p.graph.nodes[1], "dim") = dim; });
  };
  EXPECT_NO_THROW(softmax_dim(Argument::of_int(0)));
  expect_error<InvalidArgument>(
      [&] {
        softmax_dim({ArgKind::floating, 1.0});
      },
      {"argument dim is of type int", "as_float"});
  expect_error<InvalidArgument>([&] { softmax_dim({ArgKind::none, {}}); }, {"dim", "as_none"});
  const auto eps = [](const Argument& value) {
    return changed("block", [&](ExportedProgram& p) { argument(p.graph.nodes[2], "eps") = value; });
  };
  EXPECT_NO_THROW(eps(Argument::of_int(1)));  // an int for a float
  expect_error<InvalidArgument>([&] { eps(Argument::of_string("x")); }, {"eps", "as_string"});
}

TEST(Nodes, ElementTypesAreNoNumbers) {
  const auto with_dtype = [](const Argument& dtype) {
    return changed("masked", [&](ExportedProgram& p) {
      p.graph.nodes[1].inputs.push_back({"dtype", dtype, program::PassedBy::keyword});
    });
  };
  Program program = with_dtype({ArgKind::scalar_type, DType::f64});
  EXPECT_EQ(program.run({at::zeros({2, 3}), at::ones({2, 3}, at::kBool)})[0].toTensor().dtype(),
            at::kDouble);
  expect_error<InvalidArgument>([&] { with_dtype(Argument::of_int(7)); },
                                {"argument dtype", "as_int"});
}

TEST(Nodes, AListOfResultsMustHaveTheLengthThatTheFileNames) {
  expect_error<InvalidArgument>(
      [] {
        changed("block", [](ExportedProgram& p) {
          argument(p.graph.nodes[4], "chunks") = Argument::of_int(2);
        }).run({at::zeros({2, 6}, at::kLong), at::zeros({8})});
      },
      {"(chunk)", "gave 2 tensors, but the file names 3"});
}

/// linear, then an all_reduce of its result over the group that the program calls `group`.
void add_all_reduce(ExportedProgram& p, const std::string& group) {
  const ValueId local = p.graph.outputs[0].as<ValueId>();
  const auto add = [&](const std::string& name, const std::string& target,
                       std::vector<program::NamedArgument> inputs) {
    program::Value value = p.graph.value(local);
    value.name = name;
    const ValueId id = p.graph.add_value(value);
    Node node;
    node.target = target;
    node.name = name;
    node.inputs = std::move(inputs);
    node.outputs = {Argument::of_tensor(id)};
    p.graph.nodes.push_back(node);
    return id;
  };
  const ValueId pending = add("all_reduce", "torch.ops._c10d_functional.all_reduce.default",
                              {{"input", Argument::of_tensor(local), {}},
                               {"reduce_op", Argument::of_string("sum"), {}},
                               {"group_name", Argument::of_string(group), {}}});
  const ValueId sum = add("wait_tensor", "torch.ops._c10d_functional.wait_tensor.default",
                          {{"tensor", Argument::of_tensor(pending), {}}});
  p.graph.outputs[0] = Argument::of_tensor(sum);
  p.signature.outputs[0].arg = p.graph.outputs[0];
}

TEST(Collectives, RunOnTheGroupThatTheNameIsGivenFor) {
  comm::run_ranks(3, [](int rank) {
    const auto world = comm::current_world();
    const std::vector<int> everyone = {0, 1, 2};
    Program program = changed("linear", [](ExportedProgram& p) { add_all_reduce(p, "0"); },
                              {.groups = {{"0", world->group(everyone)}}});
    Program plain = changed("linear", [](ExportedProgram&) {});
    at::Tensor expected = at::zeros({4, 2});
    for (int other = 0; other < 3; ++other) {
      expected += plain.run({at::full({4, 3}, other + 1.0F)})[0].toTensor();
    }
    const auto sum = program.run({at::full({4, 3}, rank + 1.0F)})[0].toTensor();
    EXPECT_TRUE(at::allclose(sum, expected));
  });
}

TEST(Collectives, AnUnknownGroupIsRefusedWhenTheProgramIsLoaded) {
  expect_error<InvalidArgument>(
      [] { changed("linear", [](ExportedProgram& p) { add_all_reduce(p, "nowhere"); }); },
      {"node 1 (all_reduce)", "process group 'nowhere'", "ProgramOptions::groups"});
}

}  // namespace nodes_test
}  // namespace tessera
