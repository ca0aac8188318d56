#include "tessera/base/dtype.h"

#include <array>

#include "tessera/base/errors.h"

namespace tessera {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int64_t bytes;
};

constexpr std::array<Row, 21> kRows = {{
    {DType::u8, "u8", 1},
    {DType::i8, "i8", 1},
    {DType::i16, "i16", 2},
    {DType::i32, "i32", 4},
    {DType::i64, "i64", 8},
    {DType::f16, "f16", 2},
    {DType::f32, "f32", 4},
    {DType::f64, "f64", 8},
    {DType::c32, "c32", 4},
    {DType::c64, "c64", 8},
    {DType::c128, "c128", 16},
    {DType::boolean, "bool", 1},
    {DType::bf16, "bf16", 2},
    {DType::f8_e5m2, "f8_e5m2", 1},
    {DType::f8_e4m3fn, "f8_e4m3fn", 1},
    {DType::f8_e5m2fnuz, "f8_e5m2fnuz", 1},
    {DType::f8_e4m3fnuz, "f8_e4m3fnuz", 1},
    {DType::u16, "u16", 2},
    {DType::u32, "u32", 4},
    {DType::u64, "u64", 8},
    {DType::f8_e8m0fnu, "f8_e8m0fnu", 1},
}};

const Row& row_of(DType dtype) {
  for (const auto& row : kRows) {
    if (row.dtype == dtype) return row;
  }
  throw NotSupported(join_text("element type number ", static_cast<int>(dtype),
                               " (quantized or sub-byte) cannot be sharded"));
}

}  // namespace

std::string_view dtype_name(DType dtype) { return row_of(dtype).name; }

int64_t dtype_bytes(DType dtype) { return row_of(dtype).bytes; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const auto& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace tessera
