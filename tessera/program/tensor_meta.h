#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/base/dtype.h"
#include "tessera/program/expression.h"

namespace tessera::program {

/// A size, stride or offset: a number, or an expression with the value that it had when the program
/// was exported (its hint).
class TESSERA_API Size {
 public:
  Size(int64_t number) : number_(number) {}  // NOLINT: sizes are mostly numbers
  Size(Expression expression, std::optional<int64_t> hint)
      : number_(hint), expression_(std::move(expression)) {}

  bool is_number() const { return !expression_.has_value(); }
  /// The number, or the hint of an expression.
  std::optional<int64_t> hint() const { return number_; }
  /// The number; throws InternalError for an expression.
  int64_t number() const;
  const std::optional<Expression>& expression() const { return expression_; }
  /// "16", "s77".
  std::string to_text() const;
  bool operator==(const Size&) const = default;

 private:
  std::optional<int64_t> number_;
  std::optional<Expression> expression_;
};

/// The memory layout of a tensor; the numbers are those of the file format.
enum class Layout : uint8_t {
  unknown = 0,
  sparse_coo = 1,
  sparse_csr = 2,
  sparse_csc = 3,
  sparse_bsr = 4,
  sparse_bsc = 5,
  mkldnn = 6,
  strided = 7,
};

struct TESSERA_API Device {
  std::string type = "cpu";
  std::optional<int64_t> index;
  bool operator==(const Device&) const = default;
};

/// Metadata of a tensor in an exported program.
struct TESSERA_API TensorMeta {
  DType dtype = DType::f32;
  std::vector<Size> sizes;
  bool requires_grad = false;
  Device device;
  std::vector<Size> strides;
  Size storage_offset = 0;
  Layout layout = Layout::strided;

  /// "f32 2xs77x16".
  std::string to_text() const;
  bool operator==(const TensorMeta&) const = default;
};

/// The file format's number of an element type (FLOAT is 7, unlike c10's 6), and the reverse;
/// nullopt for numbers of unsupported types.
TESSERA_API int64_t dtype_code(DType dtype);
TESSERA_API std::optional<DType> dtype_from_code(int64_t code);

}  // namespace tessera::program
