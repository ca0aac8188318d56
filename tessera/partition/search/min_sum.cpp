#include "tessera/partition/search/min_sum.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tessera::partition {
namespace {

std::vector<size_t> strides_of(std::span<const size_t> counts) {
  std::vector<size_t> out(counts.size(), 1);
  for (size_t i = counts.size(); i-- > 1;) out[i - 1] = out[i] * counts[i];
  return out;
}

/// Writes to out[sum of at[i] * place[i]].
void dense(std::span<const size_t> counts, size_t states, std::span<const SumTerm> terms,
           std::span<const size_t> place, double* out) {
  std::vector<size_t> offset(terms.size(), 0), at(counts.size(), 0);
  std::vector<double> sum(states);
  size_t to = 0;
  while (true) {
    const double* first = terms[0].costs + offset[0];
    std::copy(first, first + states, sum.begin());
    for (size_t t = 1; t < terms.size(); ++t) {
      const double* costs = terms[t].costs + offset[t];
      for (size_t s = 0; s < states; ++s) sum[s] += costs[s];
    }
    double least = sum[0];
    for (size_t s = 1; s < states; ++s) least = sum[s] < least ? sum[s] : least;
    out[to] = least;
    size_t i = counts.size();
    while (i-- > 0) {
      to += place[i];
      for (size_t t = 0; t < terms.size(); ++t) offset[t] += terms[t].stride[i];
      if (++at[i] < counts[i]) break;
      to -= place[i] * counts[i];
      for (size_t t = 0; t < terms.size(); ++t) offset[t] -= terms[t].stride[i] * counts[i];
      at[i] = 0;
    }
    if (i == SIZE_MAX) return;
  }
}

/// The variable whose term leaves the fewest states, if that is a few of all; -1 if none does.
struct Sparse {
  int variable = -1;
  size_t term = 0;
};

Sparse find_sparse(std::span<const size_t> counts, size_t states, std::span<const SumTerm> terms) {
  Sparse best;
  double least = 0.5;
  for (size_t t = 0; t < terms.size(); ++t) {
    int only = -1, depends = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (terms[t].stride[i] == 0) continue;
      only = static_cast<int>(i);
      ++depends;
    }
    if (depends != 1) continue;
    const size_t entries = counts[static_cast<size_t>(only)] * states;
    const auto finite = std::count_if(terms[t].costs, terms[t].costs + entries,
                                      [](double c) { return std::isfinite(c); });
    const double share = static_cast<double>(finite) / static_cast<double>(entries);
    if (share >= least) continue;
    least = share;
    best = {only, t};
  }
  return best;
}

/// A term at one state of a variable, for the listed states of the one that goes.
std::vector<double> gathered(SumTerm& term, std::span<const size_t> counts, size_t variable,
                             size_t state, std::span<const size_t> kept) {
  std::vector<size_t> free;
  size_t rows = 1;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (i == variable || term.stride[i] == 0) continue;
    free.push_back(i);
    rows *= counts[i];
  }
  const double* base = term.costs + state * term.stride[variable];
  std::vector<size_t> stride(counts.size(), 0), at(free.size(), 0);
  size_t step = kept.size();
  for (size_t k = free.size(); k-- > 0;) {
    stride[free[k]] = step;
    step *= counts[free[k]];
  }
  std::vector<double> out;
  out.reserve(rows * kept.size());
  for (size_t row = 0; row < rows; ++row) {
    for (const size_t s : kept) out.push_back(base[s]);
    for (size_t k = free.size(); k-- > 0;) {
      base += term.stride[free[k]];
      if (++at[k] < counts[free[k]]) break;
      base -= term.stride[free[k]] * counts[free[k]];
      at[k] = 0;
    }
  }
  term.stride = std::move(stride);
  return out;
}

}  // namespace

std::vector<double> min_sum(std::span<const size_t> counts, size_t states,
                            std::span<const SumTerm> terms, double& cells) {
  size_t size = 1;
  for (const size_t n : counts) size *= n;
  std::vector<double> out(size, std::numeric_limits<double>::infinity());
  const auto place = strides_of(counts);
  const Sparse sparse = find_sparse(counts, states, terms);
  if (sparse.variable < 0) {
    cells += static_cast<double>(size * states);
    dense(counts, states, terms, place, out.data());
    return out;
  }
  const auto variable = static_cast<size_t>(sparse.variable);
  std::vector<size_t> rest(counts.begin(), counts.end());
  rest[variable] = 1;
  for (size_t state = 0; state < counts[variable]; ++state) {
    const double* costs = terms[sparse.term].costs + state * terms[sparse.term].stride[variable];
    std::vector<size_t> kept;
    for (size_t s = 0; s < states; ++s) {
      if (std::isfinite(costs[s])) kept.push_back(s);
    }
    if (kept.empty()) continue;
    std::vector<SumTerm> here(terms.begin(), terms.end());
    std::vector<std::vector<double>> tables;
    for (SumTerm& term : here) {
      tables.push_back(gathered(term, counts, variable, state, kept));
      term.costs = tables.back().data();
    }
    cells += static_cast<double>(size / counts[variable] * kept.size());
    dense(rest, kept.size(), here, place, out.data() + state * place[variable]);
  }
  return out;
}

}  // namespace tessera::partition
