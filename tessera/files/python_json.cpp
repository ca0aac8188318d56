#include "tessera/files/python_json.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

namespace tessera::files {
namespace {

using Json = nlohmann::ordered_json;

/// Python writes plain digits for exponents in [-4, 16), scientific notation beyond.
constexpr int kMinPlain = -4;
constexpr int kMaxPlain = 16;

void append_value(std::string& out, const Json& value) {
  switch (value.type()) {
    case Json::value_t::object: {
      out += '{';
      bool first = true;
      for (const auto& [key, item] : value.items()) {
        if (!first) out += ", ";
        first = false;
        append_value(out, Json(key));
        out += ": ";
        append_value(out, item);
      }
      out += '}';
      return;
    }
    case Json::value_t::array: {
      out += '[';
      bool first = true;
      for (const auto& item : value) {
        if (!first) out += ", ";
        first = false;
        append_value(out, item);
      }
      out += ']';
      return;
    }
    case Json::value_t::number_float:
      out += python_float(value.get<double>());
      return;
    default:  // text, integers, true, false, null: the same in both
      out += value.dump(-1, ' ', /*ensure_ascii=*/true);
  }
}

}  // namespace

std::string python_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  std::array<char, 40> buffer;
  const auto scientific = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                        std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<size_t>(scientific.ptr - buffer.data()));
  std::string_view power = text.substr(text.find('e') + 1);  // not followed by a zero byte
  if (power.starts_with('+')) power.remove_prefix(1);
  int exponent = 0;
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  if (exponent < kMinPlain || exponent >= kMaxPlain) return std::string(text);
  const auto plain =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed);
  std::string out(buffer.data(), static_cast<size_t>(plain.ptr - buffer.data()));
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::string python_json(const Json& value) {
  std::string out;
  append_value(out, value);
  return out;
}

}  // namespace tessera::files
