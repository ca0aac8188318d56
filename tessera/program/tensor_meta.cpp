#include "tessera/program/tensor_meta.h"

#include <algorithm>
#include <array>

#include "tessera/base/errors.h"

namespace tessera::program {
namespace {

struct Code {
  int64_t code;
  DType dtype;
};

constexpr std::array<Code, 21> kCodes = {{
    {1, DType::u8},          {2, DType::i8},           {3, DType::i16},
    {4, DType::i32},         {5, DType::i64},          {6, DType::f16},
    {7, DType::f32},         {8, DType::f64},          {9, DType::c32},
    {10, DType::c64},        {11, DType::c128},        {12, DType::boolean},
    {13, DType::bf16},       {28, DType::u16},         {29, DType::f8_e4m3fn},
    {30, DType::f8_e5m2},    {31, DType::f8_e4m3fnuz}, {32, DType::f8_e5m2fnuz},
    {33, DType::f8_e8m0fnu}, {34, DType::u32},         {35, DType::u64},
}};

}  // namespace

int64_t Size::number() const {
  ensure(is_number(), "a symbolic size was used as a number");
  return *number_;
}

std::string Size::to_text() const {
  return expression_ ? expression_->to_text() : std::to_string(*number_);
}

std::string TensorMeta::to_text() const {
  std::string out(dtype_name(dtype));
  out += ' ';
  for (size_t i = 0; i < sizes.size(); ++i) out += (i > 0 ? "x" : "") + sizes[i].to_text();
  return sizes.empty() ? out + "scalar" : out;
}

int64_t dtype_code(DType dtype) {
  const auto found = std::ranges::find(kCodes, dtype, &Code::dtype);
  ensure(found != kCodes.end(), "an element type without a number in exported programs");
  return found->code;
}

std::optional<DType> dtype_from_code(int64_t code) {
  const auto found = std::ranges::find(kCodes, code, &Code::code);
  if (found == kCodes.end()) return std::nullopt;
  return found->dtype;
}

}  // namespace tessera::program
