#include "tests/support/sharded_programs.h"

#include <cstring>
#include <fstream>

#include "tessera/partition/manifest/manifest.h"
#include "tessera/program/archive.h"

namespace tessera::test {
namespace {

using partition::Manifest;
using program::Argument;
using program::Node;
using program::ValueId;

constexpr int kRanks = 2;
constexpr int64_t kOut = 2;  // rows of the weight
constexpr int64_t kIn = 3;

struct Linear {
  std::shared_ptr<const program::Archive> archive =
      program::Archive::open("tests/program/data/linear.pt2");
  program::ExportedProgram program = archive->read_program();
  program::SaveOptions replace;

  Node& node() { return program.graph.nodes[0]; }
  ValueId value(const std::string& argument) { return node().find(argument)->as<ValueId>(); }

  void set_shape(ValueId id, const std::vector<int64_t>& shape) {
    auto& meta = *program.graph.value(id).tensor;
    meta.sizes.assign(shape.begin(), shape.end());
    int64_t stride = 1;
    for (size_t d = shape.size(); d-- > 0; stride *= shape[d]) meta.strides[d] = stride;
  }

  std::vector<float> floats_of(const std::string& name) const {
    const auto bytes = archive->bytes_of_weight(*program.find_payload(name));
    std::vector<float> out(bytes.size() / sizeof(float));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

  /// Replaces a parameter by its shard: new shape and contents.
  void set_weight(const std::string& name, const std::vector<int64_t>& shape,
                  std::vector<float> contents) {
    const auto id = name == "weight" ? value("weight") : value("bias");
    set_shape(id, shape);
    for (auto& payload : program.weights) {
      if (payload.name != name) continue;
      payload.meta->sizes = program.graph.value(id).tensor->sizes;
      payload.meta->strides = program.graph.value(id).tensor->strides;
      replace.replace["data/weights/" + payload.path_name] = {
          .size = contents.size() * sizeof(float), .write = [contents](const auto& sink) {
            sink(std::as_bytes(std::span<const float>(contents)));
          }};
    }
  }

  ValueId append(const std::string& name, const std::string& target,
                 std::vector<program::NamedArgument> inputs) {
    program::Value value = program.graph.value(program.graph.outputs[0].as<ValueId>());
    value.name = name;
    const ValueId id = program.graph.add_value(value);
    Node added;
    added.target = target;
    added.name = name;
    added.inputs = std::move(inputs);
    added.outputs = {Argument::of_tensor(id)};
    program.graph.nodes.push_back(added);
    program.graph.outputs[0] = Argument::of_tensor(id);
    program.signature.outputs[0].arg = program.graph.outputs[0];
    return id;
  }
};

Manifest manifest_of(const std::string& mesh, const Placement& input, const Placement& output) {
  Manifest manifest;
  manifest.source = "linear.pt2";
  manifest.mesh = DeviceMesh::parse(mesh);
  for (int rank = 0; rank < kRanks; ++rank) {
    manifest.ranks.push_back({rank, "rank_" + std::to_string(rank) + ".pt2", "model"});
  }
  manifest.groups = {{"0", {0, 1}}};
  manifest.inputs = {{"input", DType::f32, {4, kIn}, {input}}};
  manifest.outputs = {{"output", DType::f32, {4, kOut}, {output}}};
  return manifest;
}

template <typename Change>
void write(const std::filesystem::path& directory, const Manifest& manifest, const Change& change) {
  std::filesystem::create_directories(directory);
  for (int rank = 0; rank < kRanks; ++rank) {
    Linear linear;
    change(linear, rank);
    program::save(linear.program, *linear.archive,
                  directory / manifest.ranks[static_cast<size_t>(rank)].file, linear.replace);
  }
  std::ofstream(directory / partition::kManifestName) << manifest.to_json();
}

}  // namespace

void write_columns(const std::filesystem::path& directory) {
  write(directory, manifest_of("tp=2", Replicate(), Shard(1)), [](Linear& linear, int rank) {
    const auto weight = linear.floats_of("weight");
    const auto bias = linear.floats_of("bias");
    linear.set_weight("weight", {1, kIn},
                      {weight.begin() + rank * kIn, weight.begin() + (rank + 1) * kIn});
    linear.set_weight("bias", {1}, {bias[static_cast<size_t>(rank)]});
    linear.set_shape(linear.program.graph.outputs[0].as<ValueId>(), {4, 1});
  });
}

void write_rows(const std::filesystem::path& directory) {
  write(directory, manifest_of("tp=2", Shard(1), Replicate()), [](Linear& linear, int rank) {
    const auto weight = linear.floats_of("weight");
    const int64_t first = rank == 0 ? 0 : 2;
    const int64_t count = rank == 0 ? 2 : 1;
    std::vector<float> part;
    for (int64_t row = 0; row < kOut; ++row) {
      for (int64_t i = 0; i < count; ++i) {
        part.push_back(weight[static_cast<size_t>(row * kIn + first + i)]);
      }
    }
    const ValueId bias = linear.value("bias");
    linear.set_weight("weight", {kOut, count}, part);
    linear.set_shape(linear.value("input"), {4, count});
    linear.node().inputs.pop_back();
    const ValueId local = linear.program.graph.outputs[0].as<ValueId>();
    const ValueId pending =
        linear.append("all_reduce", "torch.ops._c10d_functional.all_reduce.default",
                      {{"input", Argument::of_tensor(local), {}},
                       {"reduce_op", Argument::of_string("sum"), {}},
                       {"group_name", Argument::of_string("0"), {}}});
    const ValueId sum = linear.append("sum", "torch.ops._c10d_functional.wait_tensor.default",
                                      {{"tensor", Argument::of_tensor(pending), {}}});
    linear.append(
        "add", "torch.ops.aten.add.Tensor",
        {{"self", Argument::of_tensor(sum), {}}, {"other", Argument::of_tensor(bias), {}}});
  });
}

void write_batch(const std::filesystem::path& directory) {
  write(directory, manifest_of("dp=2", Shard(0), Shard(0)), [](Linear& linear, int) {
    linear.set_shape(linear.value("input"), {2, kIn});
    linear.set_shape(linear.program.graph.outputs[0].as<ValueId>(), {2, kOut});
  });
}

}  // namespace tessera::test
