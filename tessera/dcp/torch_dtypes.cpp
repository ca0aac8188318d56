#include "tessera/dcp/torch_dtypes.h"

#include <array>
#include <string>
#include <vector>

#include "tessera/base/errors.h"

namespace tessera::dcp {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  std::string_view storage;
};

constexpr std::array<Row, 21> kRows = {{
    {DType::f32, "torch.float32", "torch.FloatStorage"},
    {DType::f64, "torch.float64", "torch.DoubleStorage"},
    {DType::f16, "torch.float16", "torch.HalfStorage"},
    {DType::bf16, "torch.bfloat16", "torch.BFloat16Storage"},
    {DType::i8, "torch.int8", "torch.CharStorage"},
    {DType::i16, "torch.int16", "torch.ShortStorage"},
    {DType::i32, "torch.int32", "torch.IntStorage"},
    {DType::i64, "torch.int64", "torch.LongStorage"},
    {DType::u8, "torch.uint8", "torch.ByteStorage"},
    {DType::boolean, "torch.bool", "torch.BoolStorage"},
    {DType::c64, "torch.complex64", "torch.ComplexFloatStorage"},
    {DType::c128, "torch.complex128", "torch.ComplexDoubleStorage"},
    {DType::u16, "torch.uint16", ""},
    {DType::u32, "torch.uint32", ""},
    {DType::u64, "torch.uint64", ""},
    {DType::c32, "torch.complex32", ""},
    {DType::f8_e4m3fn, "torch.float8_e4m3fn", ""},
    {DType::f8_e5m2, "torch.float8_e5m2", ""},
    {DType::f8_e4m3fnuz, "torch.float8_e4m3fnuz", ""},
    {DType::f8_e5m2fnuz, "torch.float8_e5m2fnuz", ""},
    {DType::f8_e8m0fnu, "torch.float8_e8m0fnu", ""},
}};

constexpr size_t kModulePrefix = 6;  // "torch."

const Row& row_of(DType dtype) {
  for (const auto& row : kRows) {
    if (row.dtype == dtype) return row;
  }
  throw NotSupported(join_text("element type ", dtype_name(dtype), " in a checkpoint"));
}

}  // namespace

std::string_view torch_name(DType dtype) { return row_of(dtype).name.substr(kModulePrefix); }

std::optional<DType> dtype_from_torch_name(std::string_view full_name) {
  for (const auto& row : kRows) {
    if (row.name == full_name) return row.dtype;
  }
  return std::nullopt;
}

std::string_view storage_name(DType dtype) {
  const std::string_view name = row_of(dtype).storage;
  return name.empty() ? name : name.substr(kModulePrefix);
}

std::optional<DType> dtype_from_storage_name(std::string_view full_name) {
  for (const auto& row : kRows) {
    if (!row.storage.empty() && row.storage == full_name) return row.dtype;
  }
  return std::nullopt;
}

std::span<const std::string_view> dtype_globals() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> out;
    for (const auto& row : kRows) {
      out.push_back(row.name);
      if (!row.storage.empty()) out.push_back(row.storage);
    }
    return out;
  }();
  return names;
}

}  // namespace tessera::dcp
