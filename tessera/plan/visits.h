#pragma once

#include <cstdint>
#include <vector>

#include "tessera/plan/layout.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {

/// A layout that a search has reached, and how.
struct Visit {
  Layout layout;
  double cost = 0;
  double left = 0;  // at least
  int parent = -1;  // number of the visit before
  Move move = Move::slice;
  uint8_t group = 0;
  bool closed = false;  // its moves were looked at
};

/// The layouts that a search has reached, by number and by layout: a vector with an open-addressed
/// index beside it, much cheaper than a map at the few hundred entries of a search.
class Visits {
 public:
  static constexpr int kNone = -1;

  size_t size() const { return visits_.size(); }
  Visit& operator[](int number) { return visits_[static_cast<size_t>(number)]; }

  /// The number of a layout, kNone if it has none.
  int find(const Layout& layout) const { return index_[slot_of(layout)]; }

  /// Gives a new layout the next number.
  int add(const Visit& visit) {
    if (2 * visits_.size() >= index_.size()) grow();
    const auto number = static_cast<int>(visits_.size());
    index_[slot_of(visit.layout)] = number;
    visits_.push_back(visit);
    return number;
  }

 private:
  /// Where a layout's number is, or would be.
  size_t slot_of(const Layout& layout) const {
    const size_t mask = index_.size() - 1;
    size_t at = (layout.key() * 0x9e3779b97f4a7c15ULL >> 32) & mask;
    while (index_[at] != kNone && visits_[static_cast<size_t>(index_[at])].layout != layout) {
      at = (at + 1) & mask;
    }
    return at;
  }

  void grow() {
    index_.assign(4 * index_.size(), kNone);
    for (size_t i = 0; i < visits_.size(); ++i) {
      index_[slot_of(visits_[i].layout)] = static_cast<int>(i);
    }
  }

  std::vector<Visit> visits_;
  std::vector<int> index_ = std::vector<int>(256, kNone);  // a power of two
};

}  // namespace tessera::plan
