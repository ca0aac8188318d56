#include "cli/printable.h"

namespace tessera::cli {
namespace {

void append_escaped(std::string& out, unsigned char c) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (c == '\n') {
    out += "\\n";
  } else if (c == '\t') {
    out += "\\t";
  } else {
    out += {'\\', 'x', kDigits[c >> 4], kDigits[c & 15]};
  }
}

std::string escaped(std::string_view text, std::string_view kept) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    const bool is_c1 = c == 0xC2 && next >= 0x80 && next < 0xA0;  // U+0080 to U+009F in UTF-8
    if (is_c1) {
      append_escaped(out, c);
      append_escaped(out, next);
      ++i;
    } else if ((c < 0x20 || c == 0x7F) && kept.find(text[i]) == std::string_view::npos) {
      append_escaped(out, c);
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, ""); }

std::string printable_lines(std::string_view text) { return escaped(text, "\n"); }

}  // namespace tessera::cli
