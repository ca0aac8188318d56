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
    case DType::c64:
      return DType::i64;
    default:
      return std::nullopt;
  }
}

bool reduces(Move move) { return move == Move::all_reduce || move == Move::reduce_scatter; }

void check_dtype(DType dtype, const Step& step) {
  const bool is_unusual =
      stand_in(dtype).has_value() || dtype == DType::c128 || dtype == DType::c32;
  const bool moves = stand_in(dtype).has_value() && !reduces(step.move);
  if (is_unusual && !moves) {
    throw NotSupported(join_text("no backend of Python's functional collectives carries ",
                                 dtype_name(dtype), " tensors in a ", plan::move_name(step.move),
                                 ": ", step.from, " -> ", step.to));
  }
}

ValueId start_step(Emitter& emit, StepWriter& writer, const Step& step, ValueId value) {
  const DType dtype = emit.meta(value).dtype;
  if (!writer.communicates()) return writer.start(value);
  check_dtype(dtype, step);
  if (const auto other = stand_in(dtype)) value = emit.reinterpret(value, *other);
  return writer.start(value);
}

ValueId finish_step(Emitter& emit, StepWriter& writer, ValueId value, DType dtype) {
  value = writer.finish(emit.wait(value));
  return emit.meta(value).dtype == dtype ? value : emit.reinterpret(value, dtype);
}

}  // namespace

bool has_messages(const plan::Plan& plan) {
  return std::ranges::any_of(plan.steps, [](const Step& step) {
    int64_t ranks = 1;
    for (const int axis : step.axes) ranks *= step.from.mesh().size(axis);
    return !plan::is_local(step.move) && ranks > 1;
  });
}

Finish start_plan(Emitter& emit, const plan::Plan& plan, ValueId value) {
  const DType dtype = emit.meta(value).dtype;
  size_t last = plan.steps.size();  // the last step with messages
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    if (StepWriter(emit, plan.steps[i]).communicates()) last = i;
  }
  const auto run = [&emit, dtype](const Step& step, ValueId in) {
    StepWriter writer(emit, step);
    const ValueId out = start_step(emit, writer, step, in);
    return writer.communicates() ? finish_step(emit, writer, out, dtype) : out;
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
  auto step = std::make_shared<Step>(plan.steps[last]);
  auto writer = std::make_shared<StepWriter>(emit, *step);
  const ValueId started = start_step(emit, *writer, *step, value);
  std::vector<Step> after(plan.steps.begin() + static_cast<std::ptrdiff_t>(last) + 1,
                          plan.steps.end());
  return [&emit, run, step, writer, started, dtype, after = std::move(after)]() {
    ValueId out = finish_step(emit, *writer, started, dtype);
    for (const Step& next : after) out = run(next, out);
    return out;
  };
}

}  // namespace tessera::partition
