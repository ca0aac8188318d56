#include "tessera/rules/notation.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "tessera/base/errors.h"

namespace tessera::rules {
namespace {

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_upper(char c) { return std::isupper(static_cast<unsigned char>(c)) != 0; }

/// The number that the text consists of.
template <typename T>
std::optional<T> read_whole(std::string_view text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// A cursor that, unlike Scanner, treats blanks as word boundaries: `mk` is two letters.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Notation parse() {
    Notation made;
    made.text = text_;
    made.operands = terms();
    expect("->");
    made.results = terms();
    while (accept(";")) made.clauses.push_back(clause());
    if (peek() != '\0') fail("';', '|' or the end");
    check(made);
    return made;
  }

 private:
  [[noreturn]] void fail(std::string_view expected) const {
    throw InvalidArgument(join_text("rule '", text_, "': expected ", expected, " at position ", at_,
                                    ", before '", text_.substr(at_), "'"));
  }
  char peek() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return here();
  }
  char here() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool accept(std::string_view what) {
    peek();
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  void expect(std::string_view what) {
    if (!accept(what)) fail(join_text("'", what, "'"));
  }
  std::string word() {
    peek();
    const size_t begin = at_;
    while (is_letter(here()) || here() == '_' || std::isdigit(here()) || here() == '-') ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  int number() {
    const auto read = read_whole<int>(word());
    if (!read || *read < 0) fail("a number");
    return *read;
  }

  std::vector<Term> terms() {
    std::vector<Term> out;
    do out.push_back(term());
    while (accept(","));
    return out;
  }

  Term term() {
    Term t;
    peek();
    t.addend = accept("+");
    t.broadcast = accept("~");
    t.list = accept("[");
    t.as_is = accept("&");
    if (t.as_is || accept("_")) {
      t.anything = true;
    } else if (!accept(".")) {
      while (is_letter(here()) || here() == '*' || here() == '1' || here() == '(') {
        t.dims.push_back(dim());
      }
      if (t.dims.empty()) fail("dims, '.', '_' or '&'");
    }
    if (t.list) expect("]");
    t.optional = accept("?");
    if (accept("!")) {
      while (is_letter(here()) || here() == '*') t.free_of += text_[at_++];
    }
    return t;
  }

  Dim dim() {
    const char c = here();
    ++at_;
    if (c == '*') return {Dim::Kind::star, '*', false, 0};
    if (c == '(') {
      const char outer = here();
      if (!is_letter(outer)) fail("a letter");
      ++at_;
      const char inner = here();
      while (here() != ')') {
        if (!is_upper(here())) fail("whole (upper-case) inner factors, then ')'");
        ++at_;
      }
      ++at_;
      return {Dim::Kind::product, outer, is_upper(outer), inner};
    }
    const bool run = text_.substr(at_).starts_with("..");
    if (run) at_ += 2;
    if (c == '1') return {run ? Dim::Kind::ones : Dim::Kind::one, '1', true, 0};
    return {run ? Dim::Kind::run : Dim::Kind::letter, c, is_upper(c), 0};
  }

  std::vector<int> operand_list() {
    std::vector<int> out;
    do out.push_back(number());
    while (accept("+"));
    return out;
  }

  /// `$name`, `$name!` or letters.
  void target(Clause& c) {
    if (accept("$")) {
      c.attribute = word();
      c.all_if_empty = accept("!");
      return;
    }
    const size_t begin = at_;
    if (accept("if ") || accept("unless ")) {  // no target
      at_ = begin;
      return;
    }
    peek();
    while (is_letter(here()) || here() == '*') c.letters += text_[at_++];
  }

  void condition(Clause& c) {
    const bool unless = accept("unless ");
    if (!unless && !accept("if ")) return;
    c.condition.attribute = word();
    c.condition.negated = unless;
    if (accept("!=")) {
      c.condition.negated = !unless;
      c.condition.value = word();
    } else if (accept("=")) {
      c.condition.value = word();
    }
    if (c.condition.attribute.empty()) fail("the name of an attribute");
  }

  /// The kind of clause that a name stands for; an error at `begin` lists the names.
  Clause::Kind clause_kind(const std::string& name, size_t begin) {
    using Kind = Clause::Kind;
    static const std::map<std::string, Kind, std::less<>> kinds = {
        {"pass", Kind::pass},         {"linear", Kind::pass}, {"order", Kind::pass},
        {"order-", Kind::pass},       {"move", Kind::pass},   {"affine", Kind::pass},
        {"idem", Kind::pass},         {"blend", Kind::pass},  {"ignore", Kind::ignore},
        {"whole", Kind::whole},       {"drop", Kind::drop},   {"reduce", Kind::reduce},
        {"rank", Kind::rank},         {"size", Kind::size},   {"even", Kind::even},
        {"nonempty", Kind::nonempty}, {"local", Kind::local}, {"mask", Kind::kernel},
        {"kernel", Kind::kernel},     {"weigh", Kind::weigh}, {"exact", Kind::exact},
        {"aligned", Kind::aligned},   {"flag", Kind::flag},   {"align", Kind::align},
        {"multiple", Kind::multiple},
    };
    const auto kind = kinds.find(name);
    if (kind == kinds.end()) {
      at_ = begin;
      fail(
          "a clause (linear, blend, affine, order, order-, idem, move, pass, ignore, whole, drop, "
          "reduce, weigh, exact, aligned, align, multiple, rank, size, even, nonempty, local, "
          "flag, kernel, mask, if)");
    }
    return kind->second;
  }

  /// linear 0, order 1, pass sum,max 0: the reductions that pass through operands.
  void pass_clause(const std::string& name, Clause& c) {
    using enum ReduceOp;
    if (name == "linear" || name == "blend") c.ops = {sum, avg};
    if (name == "affine") c.ops = {avg};
    if (name == "order" || name == "order-") c.ops = {max, min};
    if (name == "idem") c.ops = {avg, max, min};
    if (name == "move") c.ops = {sum, avg, max, min, product, band, bor, bxor};
    c.swaps = name == "order-";
    c.of_reals = name.starts_with("order") || name == "blend";
    if (name == "pass") {
      do c.ops.push_back(reduce_op_from_name(word()));
      while (accept(","));
    }
    c.operands = operand_list();
  }

  /// local $size n, local $size 0.1, local $size result 0: an attribute that is a local size.
  void local_clause(Clause& c) {
    expect("$");
    c.attribute = word();
    if (accept("result")) {
      c.of_result = number();
    } else if (is_letter(peek())) {
      c.letters = std::string(1, here());
      ++at_;
    } else {
      c.of_operand = number();
    }
    if (accept(".")) c.of_dim = number();
  }

  Clause clause() {
    using Kind = Clause::Kind;
    Clause c;
    peek();
    const size_t begin = at_;
    if (accept("if ") || accept("unless ")) {
      at_ = begin;
      c.kind = Kind::guard;
      condition(c);
      return c;
    }
    const std::string name = word();
    c.kind = clause_kind(name, begin);
    clause_arguments(name, c);
    condition(c);
    return c;
  }

  void clause_arguments(const std::string& name, Clause& c) {
    using Kind = Clause::Kind;
    switch (c.kind) {
      case Kind::pass:
        pass_clause(name, c);
        break;
      case Kind::ignore:
        c.operands = operand_list();
        break;
      case Kind::align:
        c.count = number();
        c.operands = operand_list();
        break;
      case Kind::multiple:
        c.count = number();
        target(c);
        break;
      case Kind::flag:
        c.name = word();
        target(c);
        break;
      case Kind::kernel:
        c.name = name == "mask" ? name : word();
        target(c);
        break;
      case Kind::whole:
      case Kind::drop:
      case Kind::even:
      case Kind::nonempty:
      case Kind::weigh:
        target(c);
        break;
      case Kind::reduce:
        target(c);
        c.ops = {reduce_op_from_name(word())};
        break;
      case Kind::rank:
      case Kind::size:
        c.letters = std::string(1, peek());
        ++at_;
        expect("$");
        c.attribute = word();
        break;
      case Kind::local:
        local_clause(c);
        break;
      case Kind::guard:
      case Kind::exact:
      case Kind::aligned:
        break;
    }
  }

  /// Checks across terms: letters of results that no operand has, operands that do not exist.
  void check(const Notation& made) {
    std::set<char> known;
    for (const auto& t : made.operands) {
      for (const auto& d : t.dims) known.insert(d.letter);
    }
    for (const auto& c : made.clauses) {
      if (c.kind == Clause::Kind::size) known.insert(c.letters[0]);
      for (int o : c.operands) {
        require(o < static_cast<int>(made.operands.size()), "rule '", text_,
                "': a clause names operand ", o, " of ", made.operands.size());
      }
      for (char letter : c.letters) {
        require(letter == '*' || known.contains(letter) || c.kind == Clause::Kind::kernel, "rule '",
                text_, "': a clause names '", letter, "', which no operand has");
      }
    }
    for (const auto& t : made.results) {
      for (const auto& d : t.dims) {
        const bool masked = std::ranges::any_of(made.clauses, [&](const Clause& c) {
          return c.kind == Clause::Kind::kernel && c.letters.find(d.letter) != std::string::npos;
        });
        require(d.whole || masked || known.contains(d.letter), "rule '", text_, "': the result's '",
                d.letter, "' is in no operand; a new dim is whole (upper case)");
      }
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

bool Term::has(Dim::Kind kind) const {
  return std::ranges::any_of(dims, [&](const Dim& d) { return d.kind == kind; });
}

bool Condition::holds(const OpCall& call) const {
  if (attribute.empty()) return true;
  const Arg* arg = call.find(attribute);
  bool is = false;
  if (value.empty() || value == "none") {
    is = arg != nullptr && !std::holds_alternative<std::monostate>(*arg);
    if (is) {
      if (const auto* s = std::get_if<Sharding>(arg)) is = s->defined();
      if (const auto* l = std::get_if<std::vector<int64_t>>(arg)) is = !l->empty();
      if (value.empty()) {
        if (const auto* b = std::get_if<bool>(arg)) is = *b;
        if (const auto* i = std::get_if<int64_t>(arg)) is = *i != 0;
        if (const auto* n = std::get_if<Number>(arg)) is = n->to_bool();
      }
    }
    if (value == "none") is = !is;
  } else if (arg != nullptr) {
    if (const auto* b = std::get_if<bool>(arg)) {
      is = value == (*b ? "true" : "false");
    } else if (const auto* s = std::get_if<std::string>(arg)) {
      is = *s == value;
    } else if (const auto* i = std::get_if<int64_t>(arg)) {
      is = std::to_string(*i) == value;
    } else if (const auto* n = std::get_if<Number>(arg)) {
      const auto number = read_whole<double>(value);  // inf and -inf too
      is = number && n->equals(*number);
    }
  }
  return is != negated;
}

std::vector<Notation> parse_notation(std::string_view text) {
  std::vector<Notation> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('|', begin), text.size());
    out.push_back(Parser(text.substr(begin, end - begin)).parse());
    begin = end + 1;
  }
  return out;
}

}  // namespace tessera::rules
