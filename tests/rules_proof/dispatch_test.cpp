#include "tests/rules_proof/dispatched_rows.h"
#include "tests/rules_proof/size_variants.h"

/// Every row again, as a user meets it: the op called on distributed operands, its results and
/// its gradients compared with the plain ones. Rows that have a kernel and ops that draw are
/// proven here alone; kernels that this machine lacks, in rows_test.cpp alone.
namespace tessera::test {
namespace dispatch_test {

bool has_stand_in(const std::string& op) {
  return attention::kStandIns.contains(op) || kernels::kStandIns.contains(op);
}

/// Each line, and up to `sizes` others like it in other sizes.
void prove_all(const std::vector<std::string>& lines, size_t sizes) {
  Tally tally;
  int others = 0;
  const unsigned seed = 40'260 + static_cast<unsigned>(lines.size());
  std::mt19937 rng(seed);
  const bool shows = std::getenv("TESSERA_SHOW_SAMPLES") != nullptr;  // for kernels that crash
  for (const auto& line : lines) {
    if (!in_this_torch(line) || has_stand_in(line.substr(0, line.find(' ')))) continue;
    if (shows) std::fprintf(stderr, "%s\n", line.c_str());
    prove_dispatch(line, seed, true, tally);
    auto variants = size_variants(line, rng);
    std::ranges::shuffle(variants, rng);
    for (size_t i = 0; i < std::min(sizes, variants.size()); ++i) {
      if (shows) std::fprintf(stderr, "  %s\n", variants[i].c_str());
      others += prove_dispatch(variants[i], seed, false, tally) ? 1 : 0;
    }
  }
  for (const auto& failure : tally.failures) ADD_FAILURE() << failure << "\n    seed " << seed;
  std::printf("%zu samples, %d in other sizes, %d rows, %d calls; %zu failures\n", lines.size(),
              others, tally.rows, tally.choices, tally.failures.size());
}

class Dispatch : public testing::TestWithParam<std::string> {};

TEST_P(Dispatch, GivesResultsAndGradientsOfEveryRow) { prove_all(samples_of(GetParam()), 3); }

INSTANTIATE_TEST_SUITE_P(Of, Dispatch, testing::ValuesIn(sample_families()),
                         [](const auto& info) { return info.param; });

TEST(DispatchOfThePointwiseTable, GivesResultsAndGradientsOfEveryRow) {
  prove_all(pointwise_samples(), 1);
}

}  // namespace dispatch_test
}  // namespace tessera::test
