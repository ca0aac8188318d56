#include "tessera/partition/search/merge_moves.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/errors.h"
#include "tessera/base/iota_vector.h"

namespace tessera::partition {
namespace {

/// More forms than these are made in the order of their readers: there are as many orders as
/// permutations, and values with so many forms are rare.
constexpr size_t kMostPermuted = 5;

struct Way {
  double seconds = std::numeric_limits<double>::infinity();
  int collectives = 0;
  std::vector<Redistribution> moves;

  bool better_than(const Way& other) const {
    constexpr double kSame = 1e-9;  // relative: sums in another order
    if (seconds < other.seconds * (1 - kSame)) return true;
    return seconds <= other.seconds * (1 + kSame) && collectives < other.collectives;
  }
};

/// Makes the forms one after the other, each from the cheapest that there is by then. A form from
/// which another is made must be there for the other's reader.
Way in_order(program::ValueId value, const Sharding& produced,
             const std::vector<const NeededForm*>& order, MoveCosts& costs) {
  Way out;
  out.seconds = 0;
  for (const NeededForm* form : order) {
    Redistribution move{value, produced, form->sharding, form->first_reader, 0, 0};
    for (const Redistribution& made : out.moves) {
      if (costs(made.to, move.to).seconds < costs(move.from, move.to).seconds) move.from = made.to;
    }
    const MoveCost& cost = costs(move.from, move.to);
    move.seconds = cost.seconds;
    move.bytes = cost.bytes;
    out.seconds += cost.seconds;
    out.collectives += cost.collectives;
    out.moves.push_back(std::move(move));
  }
  for (size_t i = out.moves.size(); i-- > 0;) {
    for (size_t j = 0; j < i; ++j) {
      Redistribution& source = out.moves[j];
      if (out.moves[i].from == source.to)
        source.first_reader = std::min(source.first_reader, out.moves[i].first_reader);
    }
  }
  return out;
}

Way best_order(program::ValueId value, const Sharding& produced,
               const std::vector<NeededForm>& forms, MoveCosts& costs) {
  std::vector<size_t> places = iota_vector(forms.size());
  Way best;
  do {
    std::vector<const NeededForm*> order;
    for (const size_t place : places) order.push_back(&forms[place]);
    Way way = in_order(value, produced, order, costs);
    if (way.better_than(best)) best = std::move(way);
  } while (forms.size() <= kMostPermuted && std::ranges::next_permutation(places).found);
  return best;
}

}  // namespace

std::vector<Redistribution> merge_moves(program::ValueId value, const Sharding& produced,
                                        std::vector<NeededForm> needed, const Sharding& also,
                                        MoveCosts& moves) {
  if (needed.empty()) return {};
  Way best = best_order(value, produced, needed, moves);
  const bool extra = also.defined() && also != produced &&
                     std::ranges::find(needed, also, &NeededForm::sharding) == needed.end();
  if (extra) {
    needed.insert(needed.begin(), {also, needed.front().first_reader});
    Way with = best_order(value, produced, needed, moves);
    if (with.better_than(best)) best = std::move(with);
  }
  ensure(std::isfinite(best.seconds), "a move that is not allowed");
  return best.moves;
}

}  // namespace tessera::partition
