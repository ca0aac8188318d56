#include "tessera/partition/rewrite/lower_plan.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/partition/rewrite/step_writer.h"

namespace tessera::partition {
namespace {

using plan::Move;
using plan::Step;
using program::ValueId;

/// Backends carry neither truth values nor rare types: bytes of the same width stand in.
std::optional<DType> stand_in(DType dtype) {
  switch (dtype) {
    case DType::boolean:
    case DType::f8_e5m2:
    case DType::f8_e4m3fn:
    case DType::f8_e5m2fnuz:
    case DType::f8_e4m3fnuz:
    case DType::f8_e8m0fnu:
      return DType::u8;
    case DType::i16:
    case DType::u16:
      return DType::f16;
    case DType::u32:
      return DType::i32;
    case DType::u64:
      return DType::i64;
    default:
      return std::nullopt;
  }
}

bool reduces(Move move) { return move == Move::all_reduce || move == Move::reduce_scatter; }

bool communicates(const Step& step) {
  int64_t ranks = 1;
  for (const int axis : step.axes) ranks *= step.from.mesh().size(axis);
  return !plan::is_local(step.move) && ranks > 1;
}

/// The step of a complex tensor for its real and imaginary parts, a last dim of 2: sums of complex
/// numbers are sums of both.
Step of_real_parts(Step step) {
  for (Sharding* sharding : {&step.from, &step.to}) {
    std::vector<int64_t> shape(sharding->shape().begin(), sharding->shape().end());
    shape.push_back(2);
    *sharding = sharding->with_shape(std::move(shape)).with_dtype(*real_dtype(sharding->dtype()));
  }
  return step;
}

/// A step on values of `dtype`, in types that backends carry.
class TypedStep {
 public:
  TypedStep(Emitter& emit, const Step& step, DType dtype)
      : emit_(emit),
        dtype_(dtype),
        as_real_(real_dtype(dtype).has_value() && communicates(step)),
        step_(as_real_ ? of_real_parts(step) : step),
        writer_(emit, step_) {}
  TypedStep(const TypedStep&) = delete;
  TypedStep& operator=(const TypedStep&) = delete;

  ValueId start(ValueId value) {
    if (!writer_.communicates()) return writer_.start(value);
    if (as_real_) return writer_.start(emit_.as_real(value));
    const auto other = stand_in(dtype_);
    if (!other) return writer_.start(value);
    if (reduces(step_.move)) {
      throw NotSupported(join_text(
          "no backend of Python's functional collectives carries ", dtype_name(dtype_),
          " tensors in a ", plan::move_name(step_.move), ": ", step_.from, " -> ", step_.to));
    }
    return writer_.start(emit_.reinterpret(value, *other));
  }

  ValueId finish(ValueId value) {
    if (!writer_.communicates()) return value;
    value = writer_.finish(emit_.wait(value));
    if (as_real_) return emit_.as_complex(value);
    return emit_.meta(value).dtype == dtype_ ? value : emit_.reinterpret(value, dtype_);
  }

 private:
  Emitter& emit_;
  DType dtype_;
  bool as_real_;
  Step step_;
  StepWriter writer_;
};

}  // namespace

bool has_messages(const plan::Plan& plan) { return std::ranges::any_of(plan.steps, communicates); }

Finish start_plan(Emitter& emit, const plan::Plan& plan, ValueId value) {
  const DType dtype = emit.meta(value).dtype;
  size_t last = plan.steps.size();  // the last step with messages
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    if (communicates(plan.steps[i])) last = i;
  }
  const auto run = [&emit, dtype](const Step& step, ValueId in) {
    TypedStep typed(emit, step, dtype);
    return typed.finish(typed.start(in));
  };
  if (last == plan.steps.size()) {
    // Local steps cost nothing to delay, and what they make is held for less long.
    return [run, steps = plan.steps, value]() {
      ValueId out = value;
      for (const Step& step : steps) out = run(step, out);
      return out;
    };
  }
  for (size_t i = 0; i < last; ++i) value = run(plan.steps[i], value);
  auto step = std::make_shared<TypedStep>(emit, plan.steps[last], dtype);
  const ValueId started = step->start(value);
  std::vector<Step> after(plan.steps.begin() + static_cast<std::ptrdiff_t>(last) + 1,
                          plan.steps.end());
  return [run, step, started, after = std::move(after)]() {
    ValueId out = step->finish(started);
    for (const Step& next : after) out = run(next, out);
    return out;
  };
}

}  // namespace tessera::partition
