#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/base/api.h"

/// Data that a program stores besides its tensors: None, booleans, integers, floats, text, bytes,
/// and tuples, lists and dicts of them. Python's plain data, without classes.
///
///   PlainValue betas = PlainValue::tuple({0.9, 0.999});
///   PlainValue step = 100;
///   step.integer()                       // 100; an InvalidArgument for anything else
namespace tessera::files {

class TESSERA_API PlainValue {
 public:
  struct Bytes {
    std::string data;
    bool operator==(const Bytes&) const = default;
  };
  struct Sequence {
    std::vector<PlainValue> items;
    bool is_tuple = false;
    bool operator==(const Sequence&) const;
  };
  struct Dict {
    std::vector<std::pair<PlainValue, PlainValue>> members;
    bool operator==(const Dict&) const;
  };
  using Data = std::variant<std::monostate, bool, int64_t, double, std::string, Bytes, Sequence,
                            std::shared_ptr<const Dict>>;

  PlainValue() = default;  ///< None
  PlainValue(bool value) : data_(value) {}
  PlainValue(int64_t value) : data_(value) {}
  PlainValue(int value) : data_(static_cast<int64_t>(value)) {}
  PlainValue(double value) : data_(value) {}
  PlainValue(std::string value) : data_(std::move(value)) {}
  PlainValue(const char* value) : data_(std::string(value)) {}
  PlainValue(Bytes value) : data_(std::move(value)) {}

  static PlainValue bytes(std::string data) { return Bytes{std::move(data)}; }
  static PlainValue list(std::vector<PlainValue> items);
  static PlainValue tuple(std::vector<PlainValue> items);
  static PlainValue dict(std::vector<std::pair<PlainValue, PlainValue>> members);

  const Data& data() const { return data_; }

  /// The value as that kind; throws InvalidArgument that names its actual kind.
  bool boolean() const;
  int64_t integer() const;
  double real() const;  ///< also from an integer
  const std::string& text() const;
  const std::string& blob() const;

  /// As Python prints it, truncated to about `limit` characters.
  std::string to_text(size_t limit = 80) const;
  bool operator==(const PlainValue& other) const;

 private:
  explicit PlainValue(Data data) : data_(std::move(data)) {}

  Data data_;
};

}  // namespace tessera::files
