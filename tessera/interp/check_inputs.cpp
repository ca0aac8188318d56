#include "tessera/interp/check_inputs.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/interp/convert_argument.h"

namespace tessera::interp {
namespace {

using c10::IValue;
using program::ValueKind;

std::string text_of(const IValue& given) {
  if (!given.isTensor()) return join_text("a value of type ", given.tagKind());
  const at::Tensor& tensor = given.toTensor();
  if (!tensor.defined()) return "an undefined tensor";
  return join_text(
      c10::toString(tensor.scalar_type()), " ",
      shape_text(std::span<const int64_t>(tensor.sizes().data(), tensor.sizes().size())), " on ",
      tensor.device().str());
}

}  // namespace

InputCheck::InputCheck(const program::ExportedProgram& program, const std::vector<Input>& inputs,
                       std::optional<c10::Device> device) {
  for (const auto& [name, value] : inputs) {
    Expected expected{.name = name, .value = value, .device = {}, .dims = {}};
    if (value->tensor) {
      expected.device = device ? *device : to_device(value->tensor->device);
      for (const auto& size : value->tensor->sizes) expected.dims.push_back(dim_of(size, program));
    } else if (value->size) {
      expected.dims.push_back(dim_of(*value->size, program));
    }
    inputs_.push_back(std::move(expected));
  }
}

InputCheck::Dim InputCheck::dim_of(const program::Size& size,
                                   const program::ExportedProgram& program) {
  if (size.is_number()) return {.number = size.number(), .symbol = {}, .expression = {}};
  const auto name = size.expression()->as_symbol();
  if (!name) {
    has_expressions_ = true;
    return {.number = {}, .symbol = {}, .expression = size.expression()};
  }
  const auto known = std::ranges::find(symbols_, *name, &Symbol::name);
  const auto index = static_cast<size_t>(known - symbols_.begin());
  if (known == symbols_.end()) {
    Symbol symbol{.name = *name, .range = {}, .value = {}};
    for (const auto& [of, range] : program.range_constraints) {
      if (of == *name) symbol.range = range;
    }
    symbols_.push_back(std::move(symbol));
  }
  return {.number = {}, .symbol = index, .expression = {}};
}

std::optional<int64_t> InputCheck::symbol(std::string_view name) const {
  const auto found = std::ranges::find(symbols_, name, &Symbol::name);
  return found == symbols_.end() ? std::nullopt : found->value;
}

void InputCheck::fail(size_t i, const IValue& given, const std::string& why) const {
  const Expected& expected = inputs_[i];
  std::string wanted = expected.value->tensor ? expected.value->tensor->to_text() : "a number";
  if (expected.device) wanted += " on " + expected.device->str();
  throw InvalidArgument(join_text("input ", expected.name, " is ", text_of(given),
                                  ", but the program wants ", wanted, ": ", why));
}

void InputCheck::check(std::span<const IValue> inputs) {
  for (auto& symbol : symbols_) symbol.value.reset();
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].value->kind == ValueKind::tensor) {
      check_tensor(i, inputs[i]);
    } else {
      check_number(i, inputs[i]);
    }
  }
  if (has_expressions_) check_expressions(inputs);
}

void InputCheck::check_tensor(size_t i, const IValue& given) {
  const Expected& expected = inputs_[i];
  if (!given.isTensor() || !given.toTensor().defined()) fail(i, given, "it must be a tensor");
  const at::Tensor& tensor = given.toTensor();
  if (!expected.value->tensor) return;
  if (tensor.scalar_type() != static_cast<c10::ScalarType>(expected.value->tensor->dtype)) {
    fail(i, given, "convert it to that type");
  }
  const c10::Device device = tensor.device();
  if (device.type() != expected.device->type() ||
      (expected.device->has_index() && device.index() != expected.device->index())) {
    fail(i, given, "move it, or load the program for that device");
  }
  const auto sizes = tensor.sizes();
  if (sizes.size() != expected.dims.size()) fail(i, given, "the number of dims differs");
  for (size_t d = 0; d < sizes.size(); ++d) {
    const Dim& dim = expected.dims[d];
    if (dim.number && *dim.number != sizes[d]) {
      fail(i, given, join_text("dim ", d, " must be ", *dim.number));
    }
    if (dim.symbol) check_size(i, dim, sizes[d], d);
  }
}

void InputCheck::check_number(size_t i, const IValue& given) {
  const Expected& expected = inputs_[i];
  const auto kind = expected.value->kind;
  if (kind == ValueKind::sym_int && !given.isInt()) fail(i, given, "it must be an int");
  if (kind == ValueKind::sym_float && !given.isDouble()) fail(i, given, "it must be a float");
  if (kind == ValueKind::sym_bool && !given.isBool()) fail(i, given, "it must be a bool");
  if (kind == ValueKind::custom_obj) {
    throw NotSupported(join_text("input ", expected.name, " is a Python object"));
  }
  if (kind != ValueKind::sym_int || expected.dims.empty()) return;
  if (expected.dims[0].symbol) check_size(i, expected.dims[0], given.toInt(), 0);
}

void InputCheck::check_size(size_t i, const Dim& dim, int64_t size, size_t position) {
  Symbol& symbol = symbols_[*dim.symbol];
  if (symbol.value) {
    require(*symbol.value == size, "input ", inputs_[i].name, ": dim ", position, " is ",
            symbol.name, ", which is ", *symbol.value, " in input ", inputs_[symbol.input].name,
            ", but here it is ", size);
    return;
  }
  const auto& [low, high] = symbol.range;
  require(!(low && *low > 2 && size < *low) && !(high && size > *high), "input ", inputs_[i].name,
          ": dim ", position, " is ", size, ", but ", symbol.name, " was exported for ",
          low.value_or(0), " to ", [&] { return high ? std::to_string(*high) : "any size"; });
  symbol.value = size;
  symbol.input = i;
}

void InputCheck::check_expressions(std::span<const IValue> inputs) const {
  const auto lookup = [&](std::string_view name) { return symbol(name); };
  for (size_t i = 0; i < inputs_.size(); ++i) {
    for (size_t d = 0; d < inputs_[i].dims.size(); ++d) {
      const auto& expression = inputs_[i].dims[d].expression;
      if (!expression) continue;
      const auto value = expression->evaluate(lookup);
      const int64_t size = inputs[i].isTensor() ? inputs[i].toTensor().size(static_cast<int64_t>(d))
                                                : inputs[i].toInt();
      if (value && *value != size) {
        fail(i, inputs[i], join_text("dim ", d, " must be ", expression->to_text(), " = ", *value));
      }
    }
  }
}

}  // namespace tessera::interp
