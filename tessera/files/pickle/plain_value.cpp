#include "tessera/files/pickle/plain_value.h"

#include "tessera/base/errors.h"
#include "tessera/files/python_json.h"

namespace tessera::files {
namespace {

template <typename T>
const T& get(const PlainValue& value, std::string_view wanted) {
  const T* found = std::get_if<T>(&value.data());
  require(found != nullptr, value, " is not ", wanted);
  return *found;
}

void append(std::string& out, const PlainValue& value, size_t limit);

void append(std::string& out, const PlainValue::Sequence& sequence, size_t limit) {
  out += sequence.is_tuple ? '(' : '[';
  for (size_t i = 0; i < sequence.items.size(); ++i) {
    if (i > 0) out += ", ";
    if (out.size() > limit) {
      out += "...";
      break;
    }
    append(out, sequence.items[i], limit);
  }
  if (sequence.is_tuple && sequence.items.size() == 1) out += ',';
  out += sequence.is_tuple ? ')' : ']';
}

void append(std::string& out, const PlainValue::Dict& dict, size_t limit) {
  out += '{';
  for (size_t i = 0; i < dict.members.size(); ++i) {
    if (i > 0) out += ", ";
    if (out.size() > limit) {
      out += "...";
      break;
    }
    append(out, dict.members[i].first, limit);
    out += ": ";
    append(out, dict.members[i].second, limit);
  }
  out += '}';
}

struct AppendText {
  std::string& out;
  size_t limit;
  void operator()(std::monostate) const { out += "None"; }
  void operator()(bool value) const { out += value ? "True" : "False"; }
  void operator()(int64_t value) const { out += std::to_string(value); }
  void operator()(double value) const { out += python_float(value); }
  void operator()(const std::string& value) const {
    out += value.size() > limit ? join_text("'", value.substr(0, limit), "...'")
                                : join_text("'", value, "'");
  }
  void operator()(const PlainValue::Bytes& value) const {
    out += join_text("bytes(", value.data.size(), ")");
  }
  void operator()(const PlainValue::Sequence& value) const { append(out, value, limit); }
  void operator()(const std::shared_ptr<const PlainValue::Dict>& value) const {
    append(out, *value, limit);
  }
};

void append(std::string& out, const PlainValue& value, size_t limit) {
  std::visit(AppendText{out, limit}, value.data());
}

}  // namespace

bool PlainValue::Sequence::operator==(const Sequence& other) const {
  return is_tuple == other.is_tuple && items == other.items;
}
bool PlainValue::Dict::operator==(const Dict& other) const { return members == other.members; }

PlainValue PlainValue::list(std::vector<PlainValue> items) {
  return PlainValue(Data(Sequence{std::move(items), false}));
}
PlainValue PlainValue::tuple(std::vector<PlainValue> items) {
  return PlainValue(Data(Sequence{std::move(items), true}));
}
PlainValue PlainValue::dict(std::vector<std::pair<PlainValue, PlainValue>> members) {
  return PlainValue(Data(std::make_shared<const Dict>(Dict{std::move(members)})));
}

bool PlainValue::boolean() const { return get<bool>(*this, "a bool"); }
int64_t PlainValue::integer() const { return get<int64_t>(*this, "a whole number"); }
const std::string& PlainValue::text() const { return get<std::string>(*this, "text"); }
const std::string& PlainValue::blob() const { return get<Bytes>(*this, "bytes").data; }

double PlainValue::real() const {
  if (const auto* whole = std::get_if<int64_t>(&data_)) return static_cast<double>(*whole);
  return get<double>(*this, "a number");
}

std::string PlainValue::to_text(size_t limit) const {
  std::string out;
  append(out, *this, limit);
  return out;
}

bool PlainValue::operator==(const PlainValue& other) const {
  const auto* mine = std::get_if<std::shared_ptr<const Dict>>(&data_);
  const auto* theirs = std::get_if<std::shared_ptr<const Dict>>(&other.data_);
  if (mine != nullptr && theirs != nullptr) return **mine == **theirs;
  return data_ == other.data_;
}

}  // namespace tessera::files
