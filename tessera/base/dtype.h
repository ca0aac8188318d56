#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "tessera/base/api.h"

namespace tessera {

/// Element types, with the numbers of c10::ScalarType, so that code that uses torch converts by a
/// cast. Names in text are f32, bf16, i64, ... as returned by `dtype_name`.
enum class DType : int8_t {
  u8 = 0,
  i8 = 1,
  i16 = 2,
  i32 = 3,
  i64 = 4,
  f16 = 5,
  f32 = 6,
  f64 = 7,
  c32 = 8,
  c64 = 9,
  c128 = 10,
  boolean = 11,
  bf16 = 15,
  f8_e5m2 = 23,
  f8_e4m3fn = 24,
  f8_e5m2fnuz = 25,
  f8_e4m3fnuz = 26,
  u16 = 27,
  u32 = 28,
  u64 = 29,
  f8_e8m0fnu = 44,
};

/// "f32". Throws NotSupported for types that cannot be sharded (quantized, sub-byte).
TESSERA_API std::string_view dtype_name(DType dtype);
TESSERA_API std::optional<DType> dtype_from_name(std::string_view name);
/// Bytes of one element.
TESSERA_API int64_t dtype_bytes(DType dtype);

}  // namespace tessera
