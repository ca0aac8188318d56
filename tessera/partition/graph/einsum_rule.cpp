#include "tessera/partition/graph/einsum_rule.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "tessera/rules/code/written.h"

namespace tessera::partition {
namespace {

constexpr char kEllipsis = '.';  // stands for "..." in a parsed term

struct Equation {
  std::vector<std::string> operands;
  std::string result;
};

/// Spaces are dropped, "..." becomes one character; nullopt for what einsum itself would refuse.
std::optional<std::vector<std::string>> parse_terms(std::string_view text) {
  std::vector<std::string> out(1);
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ' ') continue;
    if (c == ',') {
      out.emplace_back();
    } else if (text.substr(i, 3) == "...") {
      if (out.back().find(kEllipsis) != std::string::npos) return std::nullopt;
      out.back() += kEllipsis;
      i += 2;
    } else if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      out.back() += c;
    } else {
      return std::nullopt;
    }
  }
  return out;
}

/// Without "->": the dims of "..." and then the labels that occur once, in alphabetical order.
std::string implied_result(const std::vector<std::string>& operands) {
  std::map<char, int> counts;
  for (const auto& term : operands) {
    for (const char c : term) ++counts[c];
  }
  std::string out;
  if (counts.erase(kEllipsis) > 0) out += kEllipsis;
  for (const auto& [label, count] : counts) {
    if (count == 1) out += label;
  }
  return out;
}

std::optional<Equation> equation_of(const rules::OpCall& call) {
  const auto* arg = call.find("equation");
  const auto* text = arg != nullptr ? std::get_if<std::string>(arg) : nullptr;
  if (text == nullptr) return std::nullopt;
  const size_t arrow = text->find("->");
  const auto operands = parse_terms(std::string_view(*text).substr(0, arrow));
  if (!operands || operands->size() != rules::tensors_of(call, "tensors").size())
    return std::nullopt;
  if (arrow == std::string::npos) return Equation{*operands, implied_result(*operands)};
  const auto result = parse_terms(std::string_view(*text).substr(arrow + 2));
  if (!result || result->size() != 1) return std::nullopt;
  return Equation{*operands, result->front()};
}

/// Einsum's labels as the notation's letters.
class Letters {
 public:
  explicit Letters(const Equation& equation) {
    for (const auto& term : equation.operands) {
      for (const char label : term) {
        if (label == kEllipsis) continue;
        const bool again = std::ranges::count(term, label) > 1;
        auto [found, added] = letters_.try_emplace(label, Letter{});
        if (added) found->second.name = static_cast<char>('a' + letters_.size() - 1);
        found->second.whole |= again;  // a diagonal
      }
    }
  }

  bool fit() const { return letters_.size() <= 26; }

  /// nullopt if a label occurs in no operand.
  std::optional<std::string> text(const std::string& term) const {
    if (term.empty()) return ".";
    std::string out;
    for (const char label : term) {
      const auto found = letters_.find(label);
      if (label != kEllipsis && found == letters_.end()) return std::nullopt;
      out += label == kEllipsis    ? '*'
             : found->second.whole ? rules::upper(found->second.name)
                                   : found->second.name;
    }
    return out;
  }

 private:
  struct Letter {
    char name = 0;
    bool whole = false;
  };
  std::map<char, Letter> letters_;
};

}  // namespace

std::string einsum_line(const rules::OpCall& call) {
  const auto equation = equation_of(call);
  if (!equation) return "";
  const Letters letters(*equation);
  if (!letters.fit()) return "";
  std::string out, linear;
  for (size_t i = 0; i < equation->operands.size(); ++i) {
    const auto text = letters.text(equation->operands[i]);
    out += (i > 0 ? ", " : "") + *text;
    linear += " ; linear " + std::to_string(i);
  }
  const auto result = letters.text(equation->result);
  return result ? out + " -> " + *result + linear : "";
}

double einsum_flops(const rules::OpCall& call) {
  const auto equation = equation_of(call);
  if (!equation) return 0;
  std::map<std::pair<char, int>, int64_t> sizes;  // by label, and place from the right in "..."
  const auto tensors = rules::tensors_of(call, "tensors");
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& term = equation->operands[i];
    const auto labels = static_cast<int>(term.size() - std::ranges::count(term, kEllipsis));
    size_t dim = 0;
    for (const char label : term) {
      const int run = label == kEllipsis ? tensors[i].ndim() - labels : 1;
      for (int k = run; k-- > 0 && dim < tensors[i].shape().size(); ++dim) {
        int64_t& size = sizes[{label, k}];
        size = std::max(size, tensors[i].shape()[dim]);
      }
    }
  }
  double out = 2;
  for (const auto& [label, size] : sizes) out *= static_cast<double>(size);
  return out;
}

rules::Rule einsum_rule() {
  return rules::written_rule("aten::einsum", "code: the equation", einsum_line);
}

}  // namespace tessera::partition
