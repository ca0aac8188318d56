#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/api.h"

namespace tessera::program {

/// An expression over the symbols of a program, such as 2*s77 + 1. Immutable; copying copies a
/// pointer.
///
/// Exported programs write expressions as SymPy's srepr:
///
///   Symbol('s77', positive=True, integer=True)
///   Add(Mul(Integer(2), Symbol('s77', positive=True, integer=True)), Integer(1))
///   FloorDiv(Symbol('s77', ...), Integer(4))
///
/// A function that `evaluate` does not support is kept and printed again; only its value is
/// unknown.
class TESSERA_API Expression {
 public:
  struct Node;

  /// Throws InvalidArgument with the text and the position.
  static Expression parse(std::string_view srepr);
  static Expression integer(int64_t value);
  /// A positive integer of that name, as torch.export creates them.
  static Expression symbol(std::string_view name);
  static Expression call(std::string_view function, std::vector<Expression> args);

  /// As SymPy's srepr; parse(e.to_srepr()) is e, and e.to_srepr() is the text that was parsed.
  std::string to_srepr() const;
  /// Human-readable: "2*s77 + 1".
  std::string to_text() const;

  using Lookup = std::function<std::optional<int64_t>(std::string_view symbol)>;
  /// The value, or nullopt if a symbol is unbound, the value is not an integer, a function is not
  /// supported or 64 bits overflow.
  std::optional<int64_t> evaluate(const Lookup& lookup) const;

  std::set<std::string> symbols() const;
  /// The symbol's name, if the expression is a single symbol.
  std::optional<std::string> as_symbol() const;

  bool operator==(const Expression& other) const { return to_srepr() == other.to_srepr(); }

 private:
  friend class ExpressionParser;
  explicit Expression(std::shared_ptr<const Node> node) : node_(std::move(node)) {}

  void append_srepr(std::string& out) const;
  void append_text(std::string& out, int precedence) const;

  std::shared_ptr<const Node> node_;
};

/// floor(a / n): the size of one of n equal shards of a symbolic size. Folded if the value is
/// known.
TESSERA_API Expression divide(const Expression& a, int64_t n);

}  // namespace tessera::program
