// Complex parameters: conjugates and negatives of them are bits that say how to read memory, and
// so are many of their gradients.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tests/fsdp/training.h"

namespace tessera::test {
namespace complex_test {

/// A use of a complex matrix [5, 6], with a plain batch [rows, 6]; a real number for each row.
struct Use {
  const char* name;
  std::function<at::Tensor(const at::Tensor& w, const at::Tensor& x)> rows;

  friend void PrintTo(const Use& use, std::ostream* out) { *out << use.name; }
};

at::Tensor by_row(const at::Tensor& values) {
  return at::view_as_real(values.resolve_conj()).pow(2).sum({1, 2});
}

const std::vector<Use> kUses = {
    {"mm", [](const auto& w, const auto& x) { return by_row(x.mm(w.t())); }},
    {"MmOfTheConjugateTransposed",
     [](const auto& w, const auto& x) { return by_row(x.mm(w.conj().t())); }},
    {"mH", [](const auto& w, const auto& x) { return by_row(x.mm(w.mH())); }},
    {"TheConjugateOfAProduct",
     [](const auto& w, const auto& x) { return by_row(x.mm(w.t()).conj()); }},
    {"ConjTimesPlain",
     [](const auto& w, const auto& x) { return by_row(w.conj().select(0, 1) * x); }},
    {"PlainPlusSelectOfConj",
     [](const auto& w, const auto& x) { return by_row(x + w.select(0, 2).conj()); }},
    {"TwiceConjugated",
     [](const auto& w, const auto& x) { return by_row(x.mm(w.conj().t().conj())); }},
    {"RealOfConj", [](const auto& w, const auto& x) { return by_row(x * at::real(w.conj())[0]); }},
    {"ImagOfConj", [](const auto& w, const auto& x) { return by_row(x * at::imag(w.conj())[0]); }},
    {"ImagOfARowOfConj",
     [](const auto& w, const auto& x) { return by_row(x * at::imag(w.conj()[3])); }},
    {"ImagOfConjTurned",
     [](const auto& w, const auto& x) {
       const at::Tensor turned = at::imag(w.conj()).t();
       return by_row(at::complex(at::real(x).mm(turned), at::imag(x).mm(turned)));
     }},
    {"ViewAsReal",
     [](const auto& w, const auto& x) { return by_row(x * at::view_as_real(w).select(2, 1)[4]); }},
    {"ViewAsRealOfResolveConj",
     [](const auto& w, const auto& x) {
       return by_row(x * at::view_as_real(w.conj().resolve_conj()).select(2, 1)[4]);
     }},
    {"NegView", [](const auto& w, const auto& x) { return by_row(x + at::_neg_view(w)[0]); }},
    {"NegViewOfConj",
     [](const auto& w, const auto& x) { return by_row(x.mm(at::_neg_view(w.conj()).t())); }},
    {"ResolveNegOfImagOfConj",
     [](const auto& w, const auto& x) { return by_row(x * at::imag(w.conj()).resolve_neg()[0]); }},
    {"PartsOfConj",
     [](const auto& w, const auto& x) {
       const auto parts = w.conj().unbind(0);
       return by_row(x * parts[0] + parts[4] + w.conj().split(2, 0)[1][1]);
     }},
    {"AloneThenPlain",
     [](const auto& w, const auto& x) { return by_row(x * w.conj().exp().sum(0)); }},
    {"AbsAndAngleOfConj",
     [](const auto& w, const auto& x) {
       return by_row(x * (w.conj().abs() + at::angle(w.conj())).sum(0));
     }},
    {"vdot", [](const auto& w, const auto& x) { return by_row(x * at::vdot(w[0], w.conj()[1])); }},
    {"CastOfConj",
     [](const auto& w, const auto& x) {
       return by_row(x.to(at::kComplexFloat).mm(w.conj().to(at::kComplexFloat).t()).to(x.dtype()));
     }},
};

at::Tensor complex_numbers(const std::vector<int64_t>& shape, uint64_t seed) {
  return at::complex(test_numbers(shape, seed), test_numbers(shape, seed + 1));
}

/// The batch's mean over all ranks is that of one rank, so gradients must be equal too.
void train_both(const Use& use, int rank, int ranks) {
  const DeviceMesh mesh = init_device_mesh("dp=" + std::to_string(ranks));
  const at::Tensor x = complex_numbers({6, 6}, 5);
  const at::Tensor mine = x.narrow(0, rank * (6 / ranks), 6 / ranks);
  const auto plain = complex_numbers({5, 6}, 9).requires_grad_();
  const auto sharded = complex_numbers({5, 6}, 9).requires_grad_();
  const std::vector<at::Tensor> list = {sharded};
  fully_shard(list, mesh);
  const auto alone = sgd()({plain});
  const auto optimizer = sgd()({sharded});
  for (int step = 0; step < 3; ++step) {
    alone->zero_grad();
    optimizer->zero_grad();
    const at::Tensor want = use.rows(plain, x);
    const at::Tensor got = use.rows(sharded, mine);
    EXPECT_TRUE(at::allclose(got, want.narrow(0, rank * (6 / ranks), 6 / ranks), 1e-6, 1e-6));
    want.mean().backward();
    got.mean().backward();
    EXPECT_TRUE(at::allclose(full_tensor(sharded.grad()), plain.grad(), 1e-6, 1e-6));
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    {
      const torch::NoGradGuard evaluation;
      EXPECT_TRUE(at::allclose(use.rows(sharded, x), use.rows(plain, x), 1e-6, 1e-6));
    }
    alone->step();
    optimizer->step();
  }
  EXPECT_TRUE(at::allclose(full_tensor(sharded.detach()), plain.detach(), 1e-6, 1e-6));
}

class ComplexUses : public testing::TestWithParam<Use> {};

TEST_P(ComplexUses, TrainAsOneRank) {
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](int rank) { train_both(GetParam(), rank, ranks); });
  }
}

INSTANTIATE_TEST_SUITE_P(FullyShard, ComplexUses, testing::ValuesIn(kUses),
                         [](const auto& use) { return std::string(use.param.name); });

/// Gradients of large parameters are sent from where they lie, and these are conjugates.
TEST(FullyShardComplex, GradientsOfLargeParametersAreThoseOfOneRank) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const at::Tensor x = complex_numbers({4, 128}, 5);
    const auto plain = complex_numbers({128, 128}, 9).requires_grad_();
    const auto sharded = complex_numbers({128, 128}, 9).requires_grad_();
    const std::vector<at::Tensor> list = {sharded};
    fully_shard(list, mesh);
    const auto loss = [](const at::Tensor& w, const at::Tensor& on) {
      return by_row((w.conj() * on.unsqueeze(1)).flatten(1)).mean();
    };
    loss(plain, x).backward();
    loss(sharded, x.narrow(0, 2 * rank, 2)).backward();
    EXPECT_TRUE(at::allclose(full_tensor(sharded.grad()), plain.grad()));
  });
}

/// Optimizers of complex parameters see them as pairs of real numbers.
TEST(FullyShardComplex, WritesToTheRealAndImaginaryPartsReachTheParameter) {
  run_ranks(3, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=3");
    const at::Tensor plain = complex_numbers({5, 6}, 9);
    const std::vector<at::Tensor> list = {plain.clone()};
    fully_shard(list, mesh);
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& w : {plain, list[0]}) {
      at::view_as_real(w).mul_(0.5);
      at::real(w).add_(1);
      at::imag(w).sub_(at::real(w));
      w.conj().mul_(2);
    }
    EXPECT_TRUE(at::allclose(full_tensor(list[0]), plain));
  });
}

}  // namespace complex_test
}  // namespace tessera::test
