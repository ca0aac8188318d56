#include "tessera/rules/tables/partial_use.h"

#include <algorithm>
#include <array>

namespace tessera::rules {
namespace {

struct Line {
  PartialUse use;
  std::string_view ops;  ///< without "aten::"; in-place forms follow
};

constexpr std::array kLines = {
    Line{PartialUse::sum, "add sub copy cat _foreach_add"},
    Line{PartialUse::product, "mm bmm mv dot addmm baddbmm linear_backward convolution_backward"},
    Line{PartialUse::matmul, "matmul"},
};

bool names(std::string_view ops, std::string_view op) {
  for (size_t begin = 0; begin < ops.size();) {
    const size_t end = std::min(ops.find(' ', begin), ops.size());
    if (ops.substr(begin, end - begin) == op) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

PartialUse partial_use(std::string_view op) {
  constexpr std::string_view kLibrary = "aten::";
  if (!op.starts_with(kLibrary)) return PartialUse::by_rows;
  op.remove_prefix(kLibrary.size());
  if (op.ends_with('_')) op.remove_suffix(1);
  const auto line = std::ranges::find_if(kLines, [&](const Line& l) { return names(l.ops, op); });
  return line == kLines.end() ? PartialUse::by_rows : line->use;
}

}  // namespace tessera::rules
