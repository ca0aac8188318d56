#include <gtest/gtest.h>

#include "tessera/program/archive.h"
#include "tessera/program/pytree.h"
#include "tessera/program/verify.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera::program {
namespace program_test {

using test::contents_of;
using test::expect_error;
using test::TempDir;

const std::filesystem::path kData = "tests/program/data";
const std::vector<std::string> kPrograms = {"linear",     "block",  "block_dynamic",
                                            "block_core", "masked", "branch"};

std::shared_ptr<const Archive> open(const std::string& name) {
  return Archive::open(kData / (name + ".pt2"));
}

class EveryProgram : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Program, EveryProgram, ::testing::ValuesIn(kPrograms),
                         [](const auto& info) { return info.param; });

TEST_P(EveryProgram, IsWrittenAsItWasRead) {
  const auto archive = open(GetParam());
  const ExportedProgram program = archive->read_program();
  const ProgramRecords records = print_program(program);
  EXPECT_EQ(records.model, archive->zip().text(*archive->record("models/model.json")));
  const TempDir dir;
  save(program, *archive, dir / "copy.pt2");
  EXPECT_TRUE(contents_of(dir / "copy.pt2") == contents_of(archive->path()));
}

TEST_P(EveryProgram, IsSound) {
  EXPECT_EQ(problems_of(open(GetParam())->read_program()), std::vector<std::string>());
}

TEST(Program, ReadsValuesNodesAndArguments) {
  const ExportedProgram program = open("linear")->read_program();
  ASSERT_EQ(program.graph.nodes.size(), 1U);
  const Node& node = program.graph.nodes[0];
  EXPECT_EQ(node.op_name(), (std::pair<std::string, std::string>("aten::linear", "default")));
  ASSERT_NE(node.find("weight"), nullptr);
  const Value& weight = program.graph.value(node.find("weight")->as<ValueId>());
  EXPECT_EQ(weight.tensor->to_text(), "f32 2x3");
  EXPECT_EQ(program.signature.inputs[0].kind, InputKind::parameter);
  EXPECT_EQ(program.signature.inputs[0].target, "weight");
  EXPECT_EQ(open("linear")->bytes_of_weight(*program.find_payload("weight")).size(), 24U);
}

TEST(Program, TiedWeightsShareTheirBytes) {
  const auto archive = open("block");
  const ExportedProgram program = archive->read_program();
  const auto* embed = program.find_payload("embed.weight");
  const auto* head = program.find_payload("head.weight");
  ASSERT_TRUE(embed != nullptr && head != nullptr);
  EXPECT_EQ(archive->bytes_of_weight(*embed).data(), archive->bytes_of_weight(*head).data());
  EXPECT_EQ(program.find_payload("ramp")->name, "ramp");  // among the constants
}

TEST(Program, KnowsDynamicSizes) {
  const ExportedProgram program = open("block_dynamic")->read_program();
  ASSERT_EQ(program.range_constraints.size(), 2U);
  const auto tokens = program.graph.find_value("tokens");
  ASSERT_TRUE(tokens);
  const TensorMeta& meta = *program.graph.value(*tokens).tensor;
  EXPECT_FALSE(meta.sizes[1].is_number());
  EXPECT_EQ(meta.sizes[1].hint(), 6);
}

TEST(Program, NamesNestedInputsAndOutputs) {
  const ExportedProgram program = open("block")->read_program();
  EXPECT_EQ(input_names(parse_pytree(program.in_spec), program.forward_arg_names),
            (std::vector<std::string>{"tokens", "extra.shift"}));
  EXPECT_EQ(output_names(parse_pytree(program.out_spec)),
            (std::vector<std::string>{"logits", "best.0", "best.1", "ramp"}));
}

TEST(Program, KeepsMembersThatItDoesNotKnow) {
  const auto archive = open("linear");
  std::string model(archive->zip().text(*archive->record("models/model.json")));
  const std::string marker = "\"is_hop_single_tensor_return\": null";
  model.insert(model.find(marker), "\"of_the_future\": [1, 2.5, \"x\"], ");
  const auto text = [&](std::string_view name) {
    return archive->zip().text(*archive->record(name));
  };
  const ExportedProgram program =
      parse_program({model, text("data/weights/model_weights_config.json"),
                     text("data/constants/model_constants_config.json")},
                    "changed");
  EXPECT_NE(print_program(program).model.find("\"of_the_future\": [1, 2.5, \"x\"]"),
            std::string::npos);
}

TEST(Verify, FindsUseBeforeDefinition) {
  ExportedProgram program = open("block")->read_program();
  std::swap(program.graph.nodes[2], program.graph.nodes[3]);
  expect_error<InvalidArgument>([&] { verify(program, "p"); },
                                {"p is not", "before it is defined"});
}

TEST(Verify, FindsAWeightOfAnotherShape) {
  ExportedProgram program = open("linear")->read_program();
  program.weights[0].meta->sizes[0] = 5;
  expect_error<InvalidArgument>([&] { verify(program, "p"); },
                                {"weight is f32 5x3 in the archive and f32 2x3 in the graph"});
}

TEST(Verify, FindsAMissingWeight) {
  ExportedProgram program = open("linear")->read_program();
  program.weights.erase(program.weights.begin());
  expect_error<InvalidArgument>([&] { verify(program, "p"); }, {"weight", "no bytes"});
}

TEST(Verify, FindsAnUnboundSymbol) {
  ExportedProgram program = open("block_dynamic")->read_program();
  auto& value = program.graph.value(program.graph.outputs[0].as<ValueId>());
  value.tensor->sizes[0] = Size(
      Expression::call("Mul", {Expression::integer(2), Expression::symbol("s99")}), std::nullopt);
  expect_error<InvalidArgument>([&] { verify(program, "p"); }, {"no input or node gives s99"});
}

// Each change of a record must end in an error with the file, the record and the place.
TEST(Program, SaysWhereItsFileIsBroken) {
  const auto archive = open("linear");
  const auto text = [&](std::string_view name) {
    return std::string(archive->zip().text(*archive->record(name)));
  };
  const auto parse_with = [&](const std::string& from, const std::string& to) {
    std::string model = text("models/model.json");
    const size_t at = model.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    model.replace(at, from.size(), to);
    parse_program({model, text("data/weights/model_weights_config.json"),
                   text("data/constants/model_constants_config.json")},
                  "f.pt2");
  };
  const std::string place = "f.pt2: models/model.json";
  expect_error<InvalidArgument>([&] { parse_with("\"major\": 8", "\"major\": 9"); },
                                {place, "schema_version", "9."});
  expect_error<InvalidArgument>([&] { parse_with("{", ""); }, {place});
  expect_error<InvalidArgument>([&] { parse_with("\"nodes\"", "\"knots\""); },
                                {place, "graph_module.graph lacks \"nodes\""});
  expect_error<InvalidArgument>(
      [&] { parse_with("\"target\": \"torch", "\"target\": 3, \"x\": \"torch"); },
      {place, "graph_module.graph.nodes[0].target is number, not text"});
  expect_error<InvalidArgument>([&] { parse_with("\"dtype\": 7", "\"dtype\": 99"); },
                                {place, "99, which is not an element type"});
  expect_error<InvalidArgument>(
      [&] { parse_with("{\"as_tensor\": {\"name\"", "{\"as_thing\": {\"name\""); },
      {place, "as_thing"});
}

}  // namespace program_test
}  // namespace tessera::program
