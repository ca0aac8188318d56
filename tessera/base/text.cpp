#include "tessera/base/text.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "tessera/base/errors.h"

namespace tessera {
namespace {

template <typename T>
std::string joined(std::span<const T> values, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += separator;
    out += std::to_string(values[i]);
  }
  return out;
}

// <cctype> and printf depend on the locale; text that is parsed again must not.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
}

void append_number(std::string& out, double x, std::chars_format format, int precision) {
  std::array<char, 32> buffer;
  const auto made =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), x, format, precision);
  out.append(buffer.data(), made.ptr);
}

}  // namespace

void append_text(std::string& out, double x) {
  append_number(out, x, std::chars_format::general, 6);
}

std::string list_text(std::span<const int64_t> values, std::string_view separator) {
  return joined(values, separator);
}

std::string list_text(std::span<const int> values, std::string_view separator) {
  return joined(values, separator);
}

std::string shape_text(std::span<const int64_t> shape) {
  return shape.empty() ? "scalar" : joined(shape, "x");
}

std::string bytes_text(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  std::string out;
  // Three digits, but 1000 to 1023 of a unit in full: never "1e+03 KiB".
  if (unit == 0 || value >= 99.95) {
    append_number(out, value, std::chars_format::fixed, 0);
  } else {
    append_number(out, value, std::chars_format::general, 3);
  }
  return join_text(out, " ", kUnits[unit]);
}

void Scanner::skip_blanks() {
  while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
}

std::string table_text(std::span<const std::vector<std::string>> rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      line.append(widths[i] - row[i].size() + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

bool Scanner::done() {
  skip_blanks();
  return at_ == text_.size();
}

char Scanner::peek() {
  skip_blanks();
  return at_ < text_.size() ? text_[at_] : '\0';
}

bool Scanner::accept(char c) {
  if (peek() != c || c == '\0') return false;
  ++at_;
  return true;
}

void Scanner::expect(char c) {
  if (!accept(c)) fail(std::string("'") + c + "'");
}

bool Scanner::accept_word(std::string_view w) {
  skip_blanks();
  if (text_.substr(at_, w.size()) != w) return false;
  const size_t end = at_ + w.size();
  if (end < text_.size() && is_name_char(text_[end])) return false;
  at_ = end;
  return true;
}

std::optional<int64_t> Scanner::accept_int() {
  skip_blanks();
  int64_t value = 0;
  const char* begin = text_.data() + at_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (error == std::errc::result_out_of_range) fail("an integer that fits 64 bits");
  if (error != std::errc{}) return std::nullopt;
  at_ += static_cast<size_t>(end - begin);
  return value;
}

int64_t Scanner::expect_int(std::string_view what) {
  auto value = accept_int();
  if (!value) fail(what);
  return *value;
}

std::optional<std::string> Scanner::accept_name() {
  skip_blanks();
  size_t end = at_;
  while (end < text_.size() && is_name_char(text_[end])) ++end;
  if (end == at_ || is_digit(text_[at_])) return std::nullopt;
  std::string name(text_.substr(at_, end - at_));
  at_ = end;
  return name;
}

std::string Scanner::expect_name(std::string_view what) {
  auto name = accept_name();
  if (!name) fail(what);
  return *std::move(name);
}

void Scanner::expect_done() {
  if (!done()) fail("the end");
}

void Scanner::fail(std::string_view expected) const {
  throw InvalidArgument(join_text(
      "cannot read \"", text_, "\": expected ", expected, " at position ", at_, ", found ",
      at_ < text_.size() ? join_text("'", text_[at_], "'") : std::string("the end")));
}

}  // namespace tessera
