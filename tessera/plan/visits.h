#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "tessera/plan/layout.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {

/// A layout that a search has visited, and how it was reached.
struct Visit {
  Layout layout;
  int64_t bytes = 0;  // of its largest local part
  double left = 0;    // lower bound of the remaining cost
  double cost =
      std::numeric_limits<double>::infinity();  // infinite: not reached by a path that can win
  int parent = -1;                              // number of the preceding visit
  Move move = Move::slice;
  uint8_t group = 0;
  bool closed = false;  // its moves were expanded
};

/// The visited layouts, by number and by layout: a vector with an open-addressed index, much
/// cheaper than a map for the few hundred entries of a search.
class Visits {
 public:
  size_t size() const { return visits_.size(); }
  Visit& operator[](int number) { return visits_[static_cast<size_t>(number)]; }
  const Visit& operator[](int number) const { return visits_[static_cast<size_t>(number)]; }

  /// The number of a layout. A new one gets the next number, and `describe` fills in its visit.
  template <typename F>
  int number(const Layout& layout, const F& describe) {
    size_t at = slot_of(layout);
    if (index_[at] != kNone) return index_[at];
    if (2 * visits_.size() >= index_.size()) {
      grow();
      at = slot_of(layout);
    }
    const auto next = static_cast<int>(visits_.size());
    index_[at] = next;
    describe(visits_.emplace_back(Visit{.layout = layout}));
    return next;
  }

 private:
  static constexpr int kNone = -1;

  /// The index position of a layout's number, or where it would be inserted.
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
