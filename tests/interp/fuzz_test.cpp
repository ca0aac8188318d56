// Damaged programs: every change ends in a program that runs or in an error of the library that
// names the file, never in a crash or another exception.
//
//   build/tests/test_interp --file=tests/interp/fuzz_test.cpp         40 s
//   TESSERA_FUZZ_SECONDS=600 TESSERA_FUZZ_SEED=7 build/tests/...      ten minutes
//
// A crash leaves the file that caused it: $TMPDIR/tessera_XXXXXX/mutated.pt2.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tessera/base/errors.h"
#include "tessera/interp/program.h"
#include "tests/support_pure/damaged_program.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera {
namespace fuzz_test {

using test::from_environment;
using test::TempDir;

/// Zeros of the shapes that the program asks for; nothing if they are too large.
std::optional<Program::Values> inputs_of(const Program& program) {
  Program::Values out;
  for (const auto& port : program.inputs()) {
    if (!port.tensor) {
      out.emplace_back(int64_t{2});
      continue;
    }
    std::vector<int64_t> shape;
    int64_t elements = 1;
    for (const auto& size : port.tensor->sizes) {
      shape.push_back(size.hint().value_or(2));
      if (shape.back() < 0 || shape.back() > 1000) return std::nullopt;
      elements *= std::max<int64_t>(shape.back(), 1);
      if (elements > 100000) return std::nullopt;
    }
    out.emplace_back(at::zeros(shape, static_cast<c10::ScalarType>(port.tensor->dtype)));
  }
  return out;
}

struct Counts {
  int ran = 0;
  int refused = 0;
};

/// Whether all went as it should.
bool try_program(const std::filesystem::path& path, Counts& counts) {
  try {
    Program program = Program::load(path);
    if (auto inputs = inputs_of(program)) program.run(std::move(*inputs));
    ++counts.ran;
    return true;
  } catch (const Error& error) {
    ++counts.refused;
    const bool names_file = std::string(error.what()).find("mutated.pt2") != std::string::npos;
    EXPECT_TRUE(names_file) << error.what();
    return names_file;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of exception: " << error.what();
    return false;
  }
}

TEST(Fuzz, DamagedProgramsRunOrAreRefused) {
  const TempDir dir;
  const std::filesystem::path path = dir / "mutated.pt2";
  const uint64_t seed = from_environment("TESSERA_FUZZ_SEED", 1);
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(from_environment("TESSERA_FUZZ_SECONDS", 40));
  Counts counts;
  for (uint64_t i = 0; std::chrono::steady_clock::now() < end; ++i) {
    std::mt19937_64 random(seed * 1000003 + i);
    const std::string from = test::write_damaged_program(path, random);
    if (!try_program(path, counts)) {
      const auto kept = std::filesystem::temp_directory_path() / "tessera_fuzz_found.pt2";
      std::filesystem::copy_file(path, kept, std::filesystem::copy_options::overwrite_existing);
      FAIL() << "seed " << seed << ", change " << i << " of " << from << ", kept as " << kept;
    }
  }
  std::printf("%d programs ran, %d were refused\n", counts.ran, counts.refused);
  EXPECT_GT(counts.refused, 10);
}

}  // namespace fuzz_test
}  // namespace tessera
