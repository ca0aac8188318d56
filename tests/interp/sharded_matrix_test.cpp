#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tessera/base/text.h"
#include "tessera/comm/threads.h"
#include "tessera/interp/program.h"
#include "tessera/interp/sharded_program.h"
#include "tessera/partition/partition.h"
#include "tessera/partition/search/auto_plan.h"
#include "tests/support_pure/property.h"
#include "tests/support_pure/temp_dir.h"

/// Every small model in every form, with static and dynamic sizes, on 2, 3 and 4 ranks, with a plan
/// and with one that is found: what it computes on ranks is what it computes whole.
namespace tessera {
namespace sharded_matrix_test {

using partition::PartitionedProgram;
using test::TempDir;

/// Of the shapes that the program was exported with, symbolic dims larger by `more`.
Program::Values random_inputs(const Program& program, int64_t more) {
  at::manual_seed(1);
  Program::Values out;
  for (const auto& port : program.inputs()) {
    std::vector<int64_t> shape;
    for (const auto& size : port.tensor->sizes)
      shape.push_back(*size.hint() + (size.is_number() ? 0 : more));
    const auto dtype = static_cast<c10::ScalarType>(port.tensor->dtype);
    out.emplace_back(at::isFloatingType(dtype) ? at::randn(shape, dtype)
                                               : at::randint(0, 2, shape, dtype));
  }
  return out;
}

/// Relative to the largest element.
double difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / a.abs().max()).item<double>();
}

PartitionedProgram with_plan(const std::string& file, const DeviceMesh& mesh,
                             const std::string& model) {
  const std::string plan = "tests/partition/plans/" + model + ".json";
  return partition::partition(std::filesystem::path(file), mesh,
                              partition::Plan::parse(tessera::test::contents_of(plan), plan));
}

/// Under a limit that makes it shard weights.
PartitionedProgram with_found_plan(const std::string& file, const DeviceMesh& mesh) {
  auto archive = program::Archive::open(file);
  auto program = archive->read_program();
  const auto whole = partition::propagate(program, mesh, partition::Plan());
  partition::AutoOptions options;
  options.choose.weight_limit = whole.totals.weight_bytes * 7 / 10;
  options.reasons = 0;
  auto found = partition::auto_plan(program, mesh, {}, options);
  return {std::move(archive), std::move(program), std::move(found.assignment), {}};
}

void expect_equal(const PartitionedProgram& sharded, const std::string& file, bool dynamic) {
  const TempDir dir;
  sharded.save(dir / "out");
  EXPECT_GT(sharded.assignment().totals.collectives, 0);
  Program whole = Program::load(file);
  for (const int64_t more : dynamic ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{0}) {
    const auto inputs = random_inputs(whole, more);
    const auto expected = whole.run(inputs);
    comm::run_ranks(sharded.mesh().size(), [&](int) {
      const auto found = ShardedProgram::load(dir / "out").run(inputs);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        const at::Tensor& tensor = expected[i].toTensor();
        ASSERT_EQ(found[i].toTensor().sizes(), tensor.sizes());
        EXPECT_LE(difference(tensor, found[i].toTensor()),
                  tensor.scalar_type() == at::kDouble ? 1e-10 : 1e-4);
      }
    });
  }
}

class EveryModel : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Matrix, EveryModel,
                         ::testing::Values("mlp", "gpt", "llama", "bert", "vit", "moe"),
                         [](const auto& info) { return info.param; });

TEST_P(EveryModel, ComputesTheSameOnRanksInEveryForm) {
  int number = 0;
  for (const char* form :
       {"raw", "infer", "core", "raw_dynamic", "infer_dynamic", "core_dynamic"}) {
    const std::string file = join_text("tests/partition/data/", GetParam(), "_", form, ".pt2");
    const bool dynamic = std::string_view(form).ends_with("dynamic");
    for (const char* text : {"tp=2", "tp=3", "tp=4", "dp=2,tp=2"}) {
      SCOPED_TRACE(join_text(file, " on ", text));
      const DeviceMesh mesh = DeviceMesh::parse(text);
      // A search on two axes takes several times as long: one form stands for all.
      if (mesh.ndim() == 2 && std::string_view(form) != "core_dynamic") continue;
      if (!test::in_sample(number++)) continue;
      if (mesh.ndim() == 1) expect_equal(with_plan(file, mesh, GetParam()), file, dynamic);
      expect_equal(with_found_plan(file, mesh), file, dynamic);
    }
  }
}

}  // namespace sharded_matrix_test
}  // namespace tessera
