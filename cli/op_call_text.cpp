#include "cli/op_call_text.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "cli/op_names.h"
#include "tessera/base/errors.h"

namespace tessera::cli {
namespace {

using c10::TypeKind;

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(' ') - begin + 1));
}

/// The items of "[a; b]" or "a;b".
std::vector<std::string> items_of(std::string text, char between) {
  text = trimmed(text);
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<std::string> out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(between, begin), text.size());
    out.push_back(trimmed(std::string_view(text).substr(begin, end - begin)));
    begin = end + 1;
  }
  return out;
}

c10::TypePtr inner(const c10::TypePtr& type) {
  return type->kind() == TypeKind::OptionalType
             ? type->castRaw<c10::OptionalType>()->getElementType()
             : type;
}

bool is_list(const c10::TypePtr& type) { return inner(type)->kind() == TypeKind::ListType; }

c10::TypePtr element(const c10::TypePtr& type) {
  return inner(is_list(type) ? inner(type)->castRaw<c10::ListType>()->getElementType() : type);
}

bool is_tensor(const c10::TypePtr& type) { return element(type)->kind() == TypeKind::TensorType; }

Sharding tensor(const DeviceMesh& mesh, const std::string& text) {
  if (text == "-") return {};
  if (text.find(':') != std::string::npos) {
    return Sharding::parse(join_text(mesh, " : ", text));
  }
  std::string replicated = "R";
  for (int axis = 1; axis < mesh.ndim(); ++axis) replicated += ",R";
  return Sharding::parse(join_text(mesh, " : ", replicated, " : ", text));
}

bool read_bool(const std::string& text) {
  require(text == "true" || text == "false", "'", text, "' is neither true nor false");
  return text == "true";
}

template <typename Read>
auto read_number(const std::string& text, std::string_view what, const Read& read) {
  size_t used = 0;
  try {
    const auto value = read(text, &used);
    if (used == text.size()) return value;
  } catch (const std::logic_error&) {
  }
  throw InvalidArgument(join_text("'", text, "' is not ", what));
}

int64_t read_int(const std::string& text) {
  return read_number(text, "an integer",
                     [](const std::string& t, size_t* n) { return std::stoll(t, n); });
}

double read_double(const std::string& text) {
  return read_number(text, "a number",
                     [](const std::string& t, size_t* n) { return std::stod(t, n); });
}

int64_t read_dtype(const std::string& text) {
  const auto dtype = dtype_from_name(text);
  require(dtype.has_value(), "'", text,
          "' is not an element type; they are written f32, bf16, i64, ...");
  return static_cast<int64_t>(*dtype);
}

rules::Arg read_scalar(const std::string& text) {
  if (text == "true" || text == "false") return read_bool(text);
  const bool whole = text.find_first_not_of("-0123456789") == std::string::npos;
  return whole ? rules::Arg(read_int(text)) : rules::Arg(read_double(text));
}

/// Schemas declare an element type (ScalarType) as an int: identified by the argument's name.
bool is_dtype(const c10::Argument& argument) {
  return argument.real_type()->kind() == TypeKind::ScalarTypeType ||
         (element(argument.type())->kind() == TypeKind::IntType &&
          argument.name().find("dtype") != std::string::npos);
}

rules::Arg read_list(const std::string& text, const c10::TypePtr& of) {
  const auto items = items_of(text, ',');
  if (of->kind() == TypeKind::BoolType) {
    std::vector<bool> out;
    for (const auto& item : items) out.push_back(read_bool(item));
    return out;
  }
  if (of->kind() == TypeKind::FloatType || of->kind() == TypeKind::NumberType) {
    std::vector<rules::Number> out;
    for (const auto& item : items) out.emplace_back(read_double(item));
    return out;
  }
  std::vector<int64_t> out;
  for (const auto& item : items) out.push_back(read_int(item));
  return out;
}

rules::Arg read_argument(const c10::Argument& argument, const std::string& text,
                         const DeviceMesh& mesh) {
  const auto type = element(argument.type());
  if (is_tensor(argument.type())) {
    if (!is_list(argument.type())) return tensor(mesh, text);
    std::vector<Sharding> list;
    for (const auto& item : items_of(text, ';')) list.push_back(tensor(mesh, item));
    return list;
  }
  if (text == "-" || text == "none") return std::monostate();
  if (is_list(argument.type())) return read_list(text, type);
  if (is_dtype(argument)) return read_dtype(text);
  switch (type->kind()) {
    case TypeKind::BoolType:
      return read_bool(text);
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return read_int(text);
    case TypeKind::FloatType:
      return read_double(text);
    case TypeKind::NumberType:
      return read_scalar(text);
    case TypeKind::StringType:
      return text;
    default:
      throw InvalidArgument(join_text("no rule looks at a ", type->str(), "; leave it out"));
  }
}

rules::Arg default_of(const c10::Argument& argument) {
  if (is_tensor(argument.type()) && !is_list(argument.type())) return Sharding();
  if (!argument.default_value() || argument.default_value()->isNone()) return std::monostate();
  const c10::IValue& value = *argument.default_value();
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  if (value.isIntList()) return value.toIntVector();
  if (value.isDoubleList()) {
    const std::vector<double> list = value.toDoubleVector();
    return std::vector<rules::Number>(list.begin(), list.end());
  }
  return std::monostate();
}

bool is_required(const c10::Argument& argument) {
  return !argument.default_value() && argument.type()->kind() != TypeKind::OptionalType;
}

/// "S0,R : 8x16" has no name; "dim=1" and "bias=S0 : 4" have one. Placements contain no '='.
std::pair<std::string, std::string> split_word(const std::string& word) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos) return {"", word};
  return {trimmed(word.substr(0, equals)), trimmed(word.substr(equals + 1))};
}

/// The word of each argument, by its index in the schema; throws if the words do not match.
std::map<size_t, std::string> assign(const c10::FunctionSchema& schema,
                                     std::span<const std::string> words) {
  const auto& arguments = schema.arguments();
  const std::string usage = schema_text(schema);
  std::map<size_t, std::string> out;
  for (const auto& word : words) {
    const auto [name, text] = split_word(word);
    if (name.empty()) continue;
    const auto named = std::ranges::find(arguments, name, &c10::Argument::name);
    require(named != arguments.end(), schema.name(), " has no argument '", name, "'\n  ", usage);
    const auto at = static_cast<size_t>(named - arguments.begin());
    require(out.emplace(at, text).second, schema.name(), ": '", name, "' is given twice");
  }
  size_t next = 0;
  for (const auto& word : words) {
    if (!split_word(word).first.empty()) continue;
    while (next < arguments.size() && (!is_tensor(arguments[next].type()) || out.contains(next)))
      ++next;
    require(next < arguments.size(), schema.name(), " takes no further tensor, '", word,
            "'; other arguments are given by name, as dim=1\n  ", usage);
    out[next++] = word;
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    require(out.contains(i) || !is_required(arguments[i]), schema.name(), " lacks '",
            arguments[i].name(), "' (", arguments[i].type()->str(), ")\n  ", usage);
  }
  return out;
}

/// Whether an overload accepts these words: other=2 is then a number, not a tensor of two elements.
bool fits(const c10::OperatorHandle& op, std::span<const std::string> words) {
  try {
    const auto given = assign(op.schema(), words);
    return std::ranges::none_of(given, [&](const auto& word) {
      const bool number = word.second.find_first_not_of("-.0123456789") == std::string::npos;
      return number && word.second != "-" && is_tensor(op.schema().arguments()[word.first].type());
    });
  } catch (const InvalidArgument&) {
    return false;
  }
}

/// The op of this name. If no overload is named and the default one does not accept these words,
/// the single overload that does.
c10::OperatorHandle resolve(const std::string& op, std::span<const std::string> words) {
  const auto exact = find_op(op);
  if (exact && (op.find('.') != std::string::npos || fits(*exact, words))) return *exact;
  const auto overloads = overloads_of(op);
  require(!overloads.empty(), "there is no op '", op, "'", similar_text(op));
  if (overloads.size() == 1) return overloads[0];
  std::vector<c10::OperatorHandle> fitting;
  std::ranges::copy_if(overloads, std::back_inserter(fitting),
                       [&](const auto& overload) { return fits(overload, words); });
  if (fitting.size() == 1) return fitting[0];
  if (exact && fitting.empty()) return *exact;  // its error is the clearest
  std::string list;
  for (const auto& one : fitting.empty() ? overloads : fitting)
    list += "\n  " + schema_text(one.schema());
  throw InvalidArgument(join_text(op,
                                  fitting.empty() ? ": no overload takes these arguments:"
                                                  : ": several overloads fit; name one:",
                                  list));
}

}  // namespace

OpCallText::OpCallText(const std::string& op, const std::string& mesh,
                       std::span<const std::string> words)
    : mesh_(DeviceMesh::parse(mesh)) {
  op_ = resolve(op.find("::") == std::string::npos ? "aten::" + op : op, words);
  const auto& schema = op_->schema();
  name_ = op_name(schema.operator_name());
  const auto given = assign(schema, words);
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const auto word = given.find(i);
    if (word == given.end()) {
      args_.push_back({argument.name(), default_of(argument)});
      continue;
    }
    try {
      args_.push_back({argument.name(), read_argument(argument, word->second, mesh_)});
    } catch (const Error& error) {
      throw InvalidArgument(join_text(name_, ": ", argument.name(), ": ", error.what()));
    }
  }
  const auto operands = call().operands();
  require(std::ranges::any_of(operands, &Sharding::defined), name_,
          ": give at least one tensor, as \"S0,R : 8x16\"");
}

}  // namespace tessera::cli
