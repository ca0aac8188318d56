#include "tessera/files/plain_value.h"

#include <array>

#include "tessera/base/errors.h"
#include "tessera/files/python_json.h"

namespace tessera::files {
namespace {

constexpr int kMaxNesting = 64;
constexpr int64_t kMaxValues = 1'000'000;
constexpr size_t kMaxBytes = size_t{1} << 32;

/// Python 2 and protocol 2 store bytes as latin-1 text with a call of this function.
constexpr std::string_view kEncode = "_codecs.encode";
constexpr std::array<std::string_view, 2> kGlobals = {"collections.OrderedDict", kEncode};

/// Each latin-1 character is one byte: code points below 256 in UTF-8.
std::string latin1(PickleRef pickled) {
  const std::string_view text = pickled.text();
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else if ((c == 0xC2 || c == 0xC3) && i + 1 < text.size()) {
      out += static_cast<char>((c << 6) | (static_cast<unsigned char>(text[++i]) & 0x3F));
    } else {
      pickled.fail("bytes that are no latin-1");
    }
  }
  return out;
}

class Converter {
 public:
  PlainValue convert(PickleRef pickled, int depth = 0) {
    if (depth > kMaxNesting) pickled.fail("values nested too deep");
    if (++values_ > kMaxValues) pickled.fail("too many values");
    switch (pickled.kind()) {
      case Pickle::Kind::none:
        return {};
      case Pickle::Kind::boolean:
        return pickled.boolean();
      case Pickle::Kind::integer:
        return pickled.integer();
      case Pickle::Kind::real:
        return pickled.real();
      case Pickle::Kind::text:
        return std::string(counted(pickled, pickled.text()));
      case Pickle::Kind::bytes:
        return PlainValue::bytes(std::string(counted(pickled, pickled.bytes())));
      case Pickle::Kind::tuple:
        return PlainValue::tuple(elements(pickled, depth));
      case Pickle::Kind::list:
        return PlainValue::list(elements(pickled, depth));
      case Pickle::Kind::dict: {
        std::vector<std::pair<PlainValue, PlainValue>> members;
        for (const auto& [key, value] : pickled.members()) {
          PlainValue converted = convert(key, depth + 1);
          members.emplace_back(std::move(converted), convert(value, depth + 1));
        }
        return PlainValue::dict(std::move(members));
      }
      default:
        break;
    }
    if (pickled.is_object(kEncode)) {
      const auto arguments = pickled.arguments();
      if (arguments.size() != 2) pickled.fail("bytes of no text");
      counted(pickled, arguments[0].text());
      return PlainValue::bytes(latin1(arguments[0]));
    }
    pickled.fail(join_text("found ", to_text(pickled.kind()),
                           " where plain data (numbers, text, bytes, lists, dicts) belongs"));
  }

 private:
  std::string_view counted(PickleRef pickled, std::string_view text) {
    bytes_ += text.size();
    if (bytes_ > kMaxBytes) pickled.fail("texts of more than 4 GiB");
    return text;
  }

  std::vector<PlainValue> elements(PickleRef pickled, int depth) {
    std::vector<PlainValue> out;
    for (const PickleRef item : pickled.items()) out.push_back(convert(item, depth + 1));
    return out;
  }

  int64_t values_ = 0;
  size_t bytes_ = 0;
};

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

struct WritePickle {
  PickleWriter& out;
  void operator()(std::monostate) const { out.none(); }
  void operator()(bool value) const { out.boolean(value); }
  void operator()(int64_t value) const { out.integer(value); }
  void operator()(double value) const { out.real(value); }
  void operator()(const std::string& value) const { out.text(value); }
  void operator()(const PlainValue::Bytes& value) const { out.bytes(value.data); }
  void operator()(const PlainValue::Sequence& value) const {
    if (!value.is_tuple) out.empty_list();
    out.mark();
    for (const auto& item : value.items) write(out, item);
    value.is_tuple ? out.tuple() : out.appends();
  }
  void operator()(const std::shared_ptr<const PlainValue::Dict>& value) const {
    out.empty_dict().mark();
    for (const auto& [key, member] : value->members) {
      write(out, key);
      write(out, member);
    }
    out.set_items();
  }
};

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

PlainValue plain_value(PickleRef pickled) { return Converter().convert(pickled); }

std::span<const std::string_view> plain_value_globals() { return kGlobals; }

void write(PickleWriter& out, const PlainValue& value) {
  std::visit(WritePickle{out}, value.data());
}

}  // namespace tessera::files
