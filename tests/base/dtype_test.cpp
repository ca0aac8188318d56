#include "tessera/base/dtype.h"

#include <gtest/gtest.h>

#include "tests/support_pure/expect_error.h"

namespace tessera {
namespace dtype_test {

using test::expect_error;

TEST(DType, HasTheNumbersOfC10AndANameAndASize) {
  struct Row {
    int number;  // of c10::ScalarType
    std::string_view name;
    int64_t bytes;
  };
  const std::vector<Row> rows = {
      {0, "u8", 1},           {1, "i8", 1},       {2, "i16", 2},        {3, "i32", 4},
      {4, "i64", 8},          {5, "f16", 2},      {6, "f32", 4},        {7, "f64", 8},
      {8, "c32", 4},          {9, "c64", 8},      {10, "c128", 16},     {11, "bool", 1},
      {15, "bf16", 2},        {23, "f8_e5m2", 1}, {24, "f8_e4m3fn", 1}, {25, "f8_e5m2fnuz", 1},
      {26, "f8_e4m3fnuz", 1}, {27, "u16", 2},     {28, "u32", 4},       {29, "u64", 8},
      {44, "f8_e8m0fnu", 1},
  };
  size_t known = 0;
  for (int number = INT8_MIN; number <= INT8_MAX; ++number) {
    const auto dtype = static_cast<DType>(number);
    if (known < rows.size() && rows[known].number == number) {
      EXPECT_EQ(dtype_name(dtype), rows[known].name);
      EXPECT_EQ(dtype_bytes(dtype), rows[known].bytes);
      EXPECT_EQ(dtype_from_name(rows[known].name), dtype);
      ++known;
    } else {
      EXPECT_THROW(dtype_name(dtype), NotSupported) << number;
    }
  }
  EXPECT_EQ(known, rows.size());
}

TEST(DType, SaysWhichNumberCannotBeSharded) {
  expect_error<NotSupported>([] { dtype_bytes(static_cast<DType>(12)); },
                             {"element type number 12", "quantized or sub-byte"});
}

TEST(DType, KnowsNoOtherNames) {
  for (const auto* name : {"", "float", "F32", "f32 ", "boolean", "f8"}) {
    EXPECT_EQ(dtype_from_name(name), std::nullopt) << name;
  }
}

}  // namespace dtype_test
}  // namespace tessera
