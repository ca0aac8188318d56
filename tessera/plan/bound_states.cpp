// The states of the easier question: which there are, and how little a layout of each can hold.
#include <algorithm>
#include <limits>

#include "tessera/plan/bound.h"

namespace tessera::plan {
namespace {

constexpr double kFar = std::numeric_limits<double>::infinity();
/// Six axes of four kinds, or eight of three. Beyond, the table would cost tens of milliseconds.
constexpr size_t kMaxStates = 8192;

/// Calls f(part) for each subset of the set, larger ones before their subsets, the empty one last.
template <typename F>
void for_each_part(AxisSet set, const F& f) {
  for_each_subset(set, f);
  f(AxisSet{0});
}

}  // namespace

LowerBound::Orders LowerBound::orders_of(const Layout& layout) const {
  Orders orders;
  for (int place = 0; place < problem_.axes(); ++place) {
    for (int axis = 0; axis < problem_.axes(); ++axis) {
      if (!is_shard(layout.code(axis)) || layout.place(axis) != place) continue;
      orders[problem_.letter(axis, layout.code(axis))].axes.push_back(axis);
    }
  }
  for (int l = 0; l < problem_.letters(); ++l) {
    Layout cut;
    orders[l].extents = {problem_.extent(cut, l)};
    orders[l].firm = {0};
    for (int axis : orders[l].axes) {
      cut.set_cell(axis, layout.cell(axis));
      orders[l].extents.push_back(problem_.extent(cut, l));
      orders[l].firm.push_back(problem_.is_ragged(axis, layout.code(axis))
                                   ? orders[l].extents.size() - 1
                                   : orders[l].firm.back());
    }
  }
  return orders;
}

void LowerBound::list_insides() {
  for (int l = 0; l < problem_.letters(); ++l) {
    AxisSet outside = 0;
    AxisSet on_letter = 0;
    AxisSet in_goal = 0;
    for (int axis : start_order_[l].axes) on_letter |= only(axis);
    for (int axis : goal_order_[l].axes) in_goal |= only(axis);
    for (int axis : start_order_[l].axes) {
      outside_[axis] = outside;
      start_inside_[axis] = on_letter & ~outside & ~only(axis);
      placed_inside_[axis] = in_goal & ~outside;
      outside |= only(axis);
    }
  }
}

void LowerBound::list_odd() {
  for (int axis = 0; axis < problem_.axes(); ++axis) {
    for (const Code code : {problem_.start().code(axis), problem_.goal().code(axis)}) {
      if (!is_odd(code)) continue;
      odd_here_[problem_.letter(axis, code)] |= only(axis);
      if (problem_.is_ragged(axis, code)) ragged_here_[problem_.letter(axis, code)] |= only(axis);
    }
    const Code code = problem_.goal().code(axis);
    if (code == problem_.start().code(axis)) keep_code_ |= only(axis);
    if (is_odd(code) && !problem_.is_ragged(axis, code)) strided_ |= only(axis);
  }
}

/// The number of states.
size_t LowerBound::list_kinds() {
  size_t states = 1;
  for (int axis = 0; axis < problem_.axes(); ++axis) {
    const Code from = problem_.start().code(axis);
    const Code to = problem_.goal().code(axis);
    auto& kinds = kinds_[axis];
    kinds = {whole};
    if (from == kPartialFrom) kinds.push_back(partial_from);
    if (to == kPartialTo) kinds.push_back(partial_to);
    if (is_shard(from) && knows_start_) kinds.push_back(start);
    if (problem_.letters() > 0) kinds.push_back(other);
    if (is_shard(to)) kinds.push_back(placed);
    digit_[axis].fill(-1);
    for (size_t i = 0; i < kinds.size(); ++i) {
      digit_[axis][kinds[i]] = static_cast<int>(states * i);
    }
    states *= kinds.size();
  }
  return states;
}

void LowerBound::list_states() {
  size_t count = list_kinds();
  if (count > kMaxStates) {
    knows_start_ = false;
    count = list_kinds();
  }
  if (count > kMaxStates) return;
  states_.resize(count);
  std::array<size_t, kMaxAxes> digits{};
  for (auto& state : states_) {
    for (int axis = 0; axis < problem_.axes(); ++axis) {
      state.of[kinds_[axis][digits[axis]]] |= only(axis);
    }
    state.left = kFar;
    state.exists = exists(state);
    if (state.exists) state.bytes = least_bytes(state);
    for (int axis = 0; axis < problem_.axes() && ++digits[axis] == kinds_[axis].size(); ++axis) {
      digits[axis] = 0;
    }
  }
}

/// An axis is placed only after all that cut its dim before it. A ragged shard is at its start only
/// while all that cut before it are there too.
bool LowerBound::exists(const State& state) const {
  for (int l = 0; l < problem_.letters(); ++l) {
    bool all = true;
    for (int axis : goal_order_[l].axes) {
      const bool is_placed = has(state.of[placed], axis);
      if (is_placed && !all) return false;
      all = is_placed;
    }
  }
  bool ok = true;
  for_each_axis(state.of[start], [&](int axis) {
    const AxisSet left = outside_[axis] & ~(state.of[start] | (state.of[placed] & keep_code_));
    if (left != 0 && problem_.is_ragged(axis, problem_.start().code(axis))) ok = false;
  });
  return ok;
}

/// What a state tells of the cuts of a letter: those at their start come first; of those in place,
/// all up to the last ragged one do, as its table says what is before it.
LowerBound::Known LowerBound::known_cuts(const State& state, int letter) const {
  const Order& goal = goal_order_[letter];
  AxisSet in_place = 0;
  for (int axis : goal.axes) in_place |= state.of[placed] & only(axis);
  const auto many = static_cast<size_t>(count(in_place));

  Layout cut;
  AxisSet at_start = 0;
  AxisSet between = 0;  // in place, perhaps since the start and before one of those
  for (int axis : start_order_[letter].axes) {
    if (!has(state.of[start], axis)) continue;
    cut.set(axis, problem_.start().code(axis), count(at_start));
    at_start |= only(axis);
    between |= in_place & outside_[axis];
  }
  Known known{at_start | in_place, 0, problem_.plain_extent(letter, 0), 0, false};
  if (at_start == 0) {
    for (size_t i = 0; i < goal.firm[many]; ++i) known.first |= only(goal.axes[i]);
    known.first_extent = goal.extents[goal.firm[many]];
    known.extent = goal.extents[many];
    known.strided = (in_place & strided_) != 0 && known.first == 0;
    return known;
  }
  if (between == 0) {
    known.first = at_start;
    known.first_extent = problem_.extent(cut, letter);
  }
  known.extent = least_extent(known, letter, 0);
  return known;
}

/// The least that is left of a letter after the goal's first `many` axes and plain or strided cuts
/// by others, in whatever order.
int64_t LowerBound::goal_extent(int letter, size_t many, AxisSet others) const {
  auto& memo = goal_extents_[static_cast<size_t>(letter)];
  if (memo.empty()) memo.resize((goal_order_[letter].axes.size() + 1) << problem_.axes(), -1);
  int64_t& least = memo[many << problem_.axes() | others];
  if (least >= 0) return least;
  least = INT64_MAX;
  Layout cut;
  for (size_t i = 0; i < many; ++i) {
    const int axis = goal_order_[letter].axes[i];
    cut.set(axis, problem_.goal().code(axis), static_cast<int>(i));
  }
  insert_everywhere(cut, letter, static_cast<int>(many), others, least);
  return least;
}

void LowerBound::insert_everywhere(const Layout& cut, int letter, int many, AxisSet others,
                                   int64_t& least) const {
  if (others == 0) {
    least = std::min(least, problem_.extent(cut, letter));
    return;
  }
  const int axis = std::countr_zero(others);
  for (int place = 0; place <= many; ++place) {
    Layout next = cut;
    for (int other = 0; other < problem_.axes(); ++other) {
      if (cut.code(other) != kReplicate && cut.place(other) >= place) {
        next.set(other, cut.code(other), cut.place(other) + 1);
      }
    }
    const auto try_code = [&](Code code) {
      next.set(axis, code, place);
      insert_everywhere(next, letter, many + 1, others & (others - 1), least);
    };
    const auto is_strided_here = [&](Code code) {
      return is_odd(code) && problem_.letter(axis, code) == letter;
    };
    const Code start = problem_.start().code(axis);
    const Code goal = problem_.goal().code(axis);
    try_code(static_cast<Code>(kFirstLetter + letter));
    if (is_strided_here(start)) try_code(start);
    if (is_strided_here(goal) && goal != start) try_code(goal);
  }
}

/// A rank's first_extent elements are shared out among the ranks of the cuts that follow.
int64_t LowerBound::least_extent(const Known& known, int letter, AxisSet others) const {
  const AxisSet cuts = known.cuts | others;
  // All orders are tried: of more cuts there are too many.
  const int most = (others & odd_here_[letter]) == 0 ? 5 : 4;
  if (known.strided && (others & ragged_here_[letter]) == 0 && count(cuts) <= most) {
    return goal_extent(letter, static_cast<size_t>(count(known.cuts)), others);
  }
  const int64_t rest = problem_.ranks(cuts & ~known.first);
  return std::max(problem_.plain_extent(letter, cuts), (known.first_extent + rest - 1) / rest);
}

/// The other axes may cut any letter: the best way to share them out, one letter after the other.
int64_t LowerBound::least_bytes(const State& state) const {
  constexpr int64_t kNoWay = INT64_MAX;
  std::array<int64_t, size_t{1} << kMaxAxes> least;
  const AxisSet others = state.of[other];
  for_each_part(others, [&](AxisSet part) { least[part] = part == 0 ? 1 : kNoWay; });
  for (int l = 0; l < problem_.letters(); ++l) {
    const Known known = known_cuts(state, l);
    // Larger sets first: the smaller ones are then still without this letter.
    for_each_part(others, [&](AxisSet set) {
      int64_t best = least[set] == kNoWay ? kNoWay : least[set] * known.extent;
      for_each_subset(set, [&](AxisSet mine) {
        const int64_t rest = least[set & ~mine];
        if (rest != kNoWay) best = std::min(best, rest * least_extent(known, l, mine));
      });
      least[set] = best;
    });
  }
  return least[others] * problem_.fixed_bytes();
}

}  // namespace tessera::plan
