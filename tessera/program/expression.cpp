#include "tessera/program/expression.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <utility>

#include "tessera/base/errors.h"

namespace tessera::program {

struct Expression::Node {
  enum class Kind { integer, symbol, call, word };
  Kind kind;
  int64_t value = 0;                  // integer
  std::string name = {};              // symbol, function, or a bare word such as `true` or '1.5'
  std::string keywords = {};          // ", positive=True, integer=True" of a symbol or a call
  std::vector<Expression> args = {};  // call
};

using Kind = Expression::Node::Kind;

namespace {

constexpr int kMaxDepth = 200;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-' || c == '+';
}

}  // namespace

/// Recursive descent over "Name(arg, arg, key=word)", bare words and quoted text.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::string_view text) : text_(text) {}

  Expression parse_all() {
    Expression out = parse(0);
    if (at_ != text_.size()) fail("the end");
    return out;
  }

 private:
  using Node = Expression::Node;

  [[noreturn]] void fail(std::string_view expected) const {
    throw InvalidArgument(join_text("symbolic expression '", text_.substr(0, 200), "': expected ",
                                    expected, " at position ", at_));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void expect(char c) {
    if (peek() != c) fail(join_text("'", c, "'"));
    ++at_;
  }

  bool accept(std::string_view s) {
    if (text_.substr(at_, s.size()) != s) return false;
    at_ += s.size();
    return true;
  }

  std::string_view word() {
    const size_t start = at_;
    while (is_word(peek())) ++at_;
    if (at_ == start) fail("a name or a number");
    return text_.substr(start, at_ - start);
  }

  std::string quoted() {
    expect('\'');
    const size_t end = text_.find('\'', at_);
    if (end == std::string_view::npos) fail("a closing quote");
    std::string out(text_.substr(at_, end - at_));
    at_ = end + 1;
    return out;
  }

  static Expression make(Node node) {
    return Expression(std::make_shared<const Node>(std::move(node)));
  }

  /// Whether "key=word" is at the current position.
  bool at_keyword() const {
    size_t i = at_;
    while (i < text_.size() && is_word(text_[i])) ++i;
    return i > at_ && i < text_.size() && text_[i] == '=';
  }

  std::string keywords() {
    const size_t start = at_;
    while (accept(", ")) {
      if (!at_keyword()) fail("key=value");
      word();
      expect('=');
      word();
    }
    return std::string(text_.substr(start, at_ - start));
  }

  Expression symbol() {
    Node node{.kind = Kind::symbol, .name = quoted()};
    if (node.name.empty()) fail("a symbol's name");
    node.keywords = keywords();
    expect(')');
    return make(std::move(node));
  }

  Expression integer() {
    const std::string_view digits = word();
    Node node{.kind = Kind::integer};
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), node.value);
    if (error != std::errc() || end != digits.data() + digits.size()) fail("a 64-bit integer");
    expect(')');
    return make(std::move(node));
  }

  Expression parse(int depth) {
    if (depth > kMaxDepth) fail("fewer nested calls");
    if (peek() == '\'') {
      return make({.kind = Kind::word, .name = join_text("'", quoted(), "'")});
    }
    const std::string name(word());
    if (!accept("(")) return make({.kind = Kind::word, .name = name});
    if (name == "Symbol") return symbol();
    if (name == "Integer") return integer();
    Node node{.kind = Kind::call, .name = name};
    if (accept(")")) return make(std::move(node));
    while (true) {
      node.args.push_back(parse(depth + 1));
      const size_t before = at_;
      if (!accept(", ")) break;
      if (at_keyword()) {
        at_ = before;
        node.keywords = keywords();
        break;
      }
    }
    expect(')');
    return make(std::move(node));
  }

  std::string_view text_;
  size_t at_ = 0;
};

Expression Expression::parse(std::string_view srepr) { return ExpressionParser(srepr).parse_all(); }

Expression Expression::integer(int64_t value) {
  return Expression(std::make_shared<const Node>(Node{.kind = Kind::integer, .value = value}));
}

Expression Expression::symbol(std::string_view name) {
  return Expression(
      std::make_shared<const Node>(Node{.kind = Kind::symbol,
                                        .name = std::string(name),
                                        .keywords = ", positive=True, integer=True"}));
}

Expression Expression::call(std::string_view function, std::vector<Expression> args) {
  return Expression(std::make_shared<const Node>(
      Node{.kind = Kind::call, .name = std::string(function), .args = std::move(args)}));
}

void Expression::append_srepr(std::string& out) const {
  switch (node_->kind) {
    case Kind::integer:
      out += join_text("Integer(", node_->value, ")");
      return;
    case Kind::symbol:
      out += join_text("Symbol('", node_->name, "'", node_->keywords, ")");
      return;
    case Kind::word:
      out += node_->name;
      return;
    case Kind::call:
      out += node_->name;
      out += '(';
      for (size_t i = 0; i < node_->args.size(); ++i) {
        if (i > 0) out += ", ";
        node_->args[i].append_srepr(out);
      }
      out += node_->keywords;
      out += ')';
  }
}

std::string Expression::to_srepr() const {
  std::string out;
  append_srepr(out);
  return out;
}

std::set<std::string> Expression::symbols() const {
  std::set<std::string> out;
  if (node_->kind == Kind::symbol) out.insert(node_->name);
  for (const auto& arg : node_->args) out.merge(arg.symbols());
  return out;
}

std::optional<std::string> Expression::as_symbol() const {
  if (node_->kind != Kind::symbol) return std::nullopt;
  return node_->name;
}

void Expression::append_text(std::string& out, int precedence) const {
  if (node_->kind == Kind::integer) {
    out += std::to_string(node_->value);
    return;
  }
  if (node_->kind != Kind::call) {
    out += node_->name;
    return;
  }
  struct Infix {
    std::string_view function, text;
    int precedence;
  };
  static constexpr Infix kInfix[] = {{"Add", " + ", 1},     {"Mul", "*", 2},
                                     {"FloorDiv", "//", 2}, {"Mod", "%", 2},
                                     {"PythonMod", "%", 2}, {"Pow", "**", 3}};
  const auto infix = std::ranges::find(kInfix, node_->name, &Infix::function);
  const bool is_infix = infix != std::end(kInfix);
  if (!is_infix) out += node_->name;
  const bool parentheses = !is_infix || infix->precedence < precedence;
  if (parentheses) out += '(';
  for (size_t i = 0; i < node_->args.size(); ++i) {
    if (i > 0) out += is_infix ? infix->text : std::string_view(", ");
    node_->args[i].append_text(out, is_infix ? infix->precedence + (i > 0 ? 1 : 0) : 0);
  }
  if (parentheses) out += ')';
}

std::string Expression::to_text() const {
  std::string out;
  append_text(out, 0);
  return out;
}

namespace {

std::optional<int64_t> floor_div(int64_t a, int64_t b) {
  if (b == 0 || (b == -1 && a == INT64_MIN)) return std::nullopt;
  const int64_t quotient = a / b;
  return quotient - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

std::optional<int64_t> value_of_call(std::string_view function, std::span<const int64_t> x) {
  const auto fold = [&](auto step) -> std::optional<int64_t> {
    if (x.empty()) return std::nullopt;
    int64_t value = x[0];
    for (size_t i = 1; i < x.size(); ++i) {
      if (step(value, x[i], &value)) return std::nullopt;  // overflow
    }
    return value;
  };
  if (function == "Add") {
    return fold(
        [](int64_t a, int64_t b, int64_t* out) { return __builtin_add_overflow(a, b, out); });
  }
  if (function == "Mul") {
    return fold(
        [](int64_t a, int64_t b, int64_t* out) { return __builtin_mul_overflow(a, b, out); });
  }
  if (function == "Max" && !x.empty()) return std::ranges::max(x);
  if (function == "Min" && !x.empty()) return std::ranges::min(x);
  if (x.size() == 1 && (function == "ToInt" || function == "TruncToInt" ||
                        function == "FloorToInt" || function == "CeilToInt")) {
    return x[0];  // of an integer
  }
  if (x.size() != 2) return std::nullopt;
  const auto quotient = floor_div(x[0], x[1]);
  if (function == "FloorDiv") return quotient;
  if (function == "CleanDiv" || function == "IntTrueDiv") {
    return quotient && *quotient * x[1] == x[0] ? quotient : std::nullopt;
  }
  if (function == "CeilDiv") {
    if (!quotient) return std::nullopt;
    return *quotient * x[1] == x[0] ? *quotient : *quotient + 1;
  }
  if (function == "Mod" || function == "PythonMod") {
    if (!quotient) return std::nullopt;
    return x[0] - *quotient * x[1];
  }
  if (function == "Pow" || function == "PowByNatural") {
    int64_t value = 1;
    if (x[1] < 0 || x[1] > 64) return std::nullopt;
    for (int64_t i = 0; i < x[1]; ++i) {
      if (__builtin_mul_overflow(value, x[0], &value)) return std::nullopt;
    }
    return value;
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> Expression::evaluate(const Lookup& lookup) const {
  switch (node_->kind) {
    case Kind::integer:
      return node_->value;
    case Kind::symbol:
      return lookup(node_->name);
    case Kind::word:
      return std::nullopt;
    case Kind::call:
      break;
  }
  std::vector<int64_t> values;
  for (const auto& arg : node_->args) {
    const auto value = arg.evaluate(lookup);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  return value_of_call(node_->name, values);
}

Expression divide(const Expression& a, int64_t n) {
  if (n == 1) return a;
  if (const auto known = a.evaluate([](std::string_view) { return std::nullopt; })) {
    return Expression::integer(*floor_div(*known, n));
  }
  return Expression::call("FloorDiv", {a, Expression::integer(n)});
}

}  // namespace tessera::program
