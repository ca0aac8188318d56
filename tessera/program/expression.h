#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::program {

/// An expression over the symbols of a program, such as 2*s77 + 1. Immutable; a copy is a pointer.
///
/// Exported programs spell expressions as SymPy's srepr does:
///
///   Symbol('s77', positive=True, integer=True)
///   Add(Mul(Integer(2), Symbol('s77', positive=True, integer=True)), Integer(1))
///   FloorDiv(Symbol('s77', ...), Integer(4))
///
/// A function that `evaluate` does not know is kept and printed again; only its value is unknown.
class Expression {
 public:
  struct Node;

  /// Throws InvalidArgument with the text and the position.
  static Expression parse(std::string_view srepr);
  static Expression integer(int64_t value);
  /// A positive integer of that name, as torch.export makes them.
  static Expression symbol(std::string_view name);
  static Expression call(std::string_view function, std::vector<Expression> args);

  /// As SymPy's srepr; parse(e.to_srepr()) is e, and e.to_srepr() the text that was parsed.
  std::string to_srepr() const;
  /// For people: "2*s77 + 1".
  std::string to_text() const;

  using Lookup = std::function<std::optional<int64_t>(std::string_view symbol)>;
  /// The value, or nothing where a symbol is unbound, the value is no integer, a function is not
  /// known or 64 bits overflow.
  std::optional<int64_t> evaluate(const Lookup& lookup) const;

  std::set<std::string> symbols() const;
  /// The symbol's name, if it is nothing but one.
  std::optional<std::string> as_symbol() const;

  bool operator==(const Expression& other) const { return to_srepr() == other.to_srepr(); }

 private:
  friend class ExpressionParser;
  explicit Expression(std::shared_ptr<const Node> node) : node_(std::move(node)) {}

  void append_srepr(std::string& out) const;
  void append_text(std::string& out, int precedence) const;

  std::shared_ptr<const Node> node_;
};

/// floor(a / n): what one of n equal shards of a symbolic size has. Folds where the value is known.
Expression divide(const Expression& a, int64_t n);

}  // namespace tessera::program
