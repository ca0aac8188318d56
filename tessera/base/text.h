#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/api.h"

/// Text formatting and parsing: joining parts for messages, and a small scanner for parse
/// functions.
///
///   join_text("k is ", 6, " on ", mesh)   -> "k is 6 on dp=2,tp=4"
///   list_text(sizes)                      -> "3,3,1"
///
/// A type is supported if it has `std::string to_text() const`. A part may also be a function that
/// returns the text, for text that is expensive and rarely needed (see `require`). Independent of
/// the program's locale.
namespace tessera {

template <typename T>
concept HasText = requires(const T& t) {
  { t.to_text() } -> std::convertible_to<std::string>;
};

inline void append_text(std::string& out, std::string_view s) { out += s; }
inline void append_text(std::string& out, char c) { out += c; }
TESSERA_API void append_text(std::string& out, double x);

template <std::integral T>
void append_text(std::string& out, T x) {
  out += std::to_string(x);
}

template <HasText T>
void append_text(std::string& out, const T& t) {
  out += t.to_text();
}

template <typename F>
requires std::invocable<const F&>
void append_text(std::string& out, const F& make) { append_text(out, make()); }

template <typename... Parts>
std::string join_text(const Parts&... parts) {
  std::string out;
  (append_text(out, parts), ...);
  return out;
}

/// "3,3,1"; any separator.
TESSERA_API std::string list_text(std::span<const int64_t> values,
                                  std::string_view separator = ",");
TESSERA_API std::string list_text(std::span<const int> values, std::string_view separator = ",");

/// "8x16"; "scalar" for no dims.
TESSERA_API std::string shape_text(std::span<const int64_t> shape);

/// "1.5 MiB", "12 B".
TESSERA_API std::string bytes_text(int64_t bytes);

/// Formats rows of cells as lines, columns padded to their widest cell. Rows may differ in length.
TESSERA_API std::string table_text(std::span<const std::vector<std::string>> rows);

/// A cursor over text for hand-written parsers. Skips blanks between tokens; every failure throws
/// InvalidArgument with the text, the position and what was expected.
class TESSERA_API Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool done();                           ///< only blanks are left
  bool accept(char c);                   ///< consumes `c` if it is next
  void expect(char c);                   ///< consumes `c` or throws
  bool accept_word(std::string_view w);  ///< consumes `w` if it is next as a whole word
  char peek();                           ///< next character, '\0' at the end
  std::optional<int64_t> accept_int();   ///< consumes digits, with an optional leading '-'
  int64_t expect_int(std::string_view what);
  std::optional<std::string> accept_name();  ///< consumes [A-Za-z_][A-Za-z0-9_]*
  std::string expect_name(std::string_view what);
  void expect_done();
  [[noreturn]] void fail(std::string_view expected) const;

 private:
  void skip_blanks();

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace tessera
