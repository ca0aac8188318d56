#include "tessera/rules/number.h"

#include <algorithm>
#include <utility>

namespace tessera::rules {
namespace {

double as_double(uint64_t bits, NumberType type) {
  if (type == NumberType::floating) return std::bit_cast<double>(bits);
  return static_cast<double>(static_cast<int64_t>(bits));
}

}  // namespace

uint64_t NumberQuery::answer(uint64_t bits) const {
  if (whole) return bits;
  return as_double(bits, type) == other ? 1 : 0;
}

bool NumberQueries::add(const NumberQuery& question) {
  constexpr int64_t kMaxComparisons = 8;  // a rule may compare with arguments of the call
  const auto is_of_same_number = [&](const NumberQuery& asked) {
    return asked.number == question.number && asked.type == question.type;
  };
  for (const auto& asked : list_) {
    if (is_of_same_number(asked) && (asked.whole || asked == question)) return false;
  }
  const bool whole =
      question.whole || std::ranges::count_if(list_, is_of_same_number) >= kMaxComparisons;
  if (whole) std::erase_if(list_, is_of_same_number);
  list_.push_back(whole ? NumberQuery{question.number, question.type, true, 0} : question);
  return true;
}

bool Number::equals(double other) const {
  if (log_ != nullptr) log_->add({place_, type_, false, other});
  return as_double(bits_, type_) == other;
}

void Number::read() const {
  if (log_ != nullptr) log_->add({place_, type_, true, 0});
}

double Number::to_double() const {
  read();
  return as_double(bits_, type_);
}

int64_t Number::to_int() const {
  read();
  return type_ == NumberType::floating ? static_cast<int64_t>(std::bit_cast<double>(bits_))
                                       : static_cast<int64_t>(bits_);
}

bool Number::to_bool() const { return !equals(0); }

Number Number::recorded(std::shared_ptr<NumberQueries> log, uint32_t place) const {
  Number out = *this;
  out.log_ = std::move(log);
  out.place_ = place;
  return out;
}

}  // namespace tessera::rules
