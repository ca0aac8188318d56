#include "tessera/files/pickle/plain_pickle.h"

#include <array>

#include "tessera/base/errors.h"

namespace tessera::files {
namespace {

constexpr int kMaxNesting = 64;
constexpr int64_t kMaxValues = 1'000'000;
constexpr size_t kMaxBytes = size_t{1} << 32;

/// Python 2 and protocol 2 store bytes as latin-1 text with a call of this function.
constexpr std::string_view kEncode = "_codecs.encode";
/// And no bytes as a call of the type, without arguments.
constexpr std::string_view kBytes = "__builtin__.bytes";
constexpr std::array<std::string_view, 3> kGlobals = {"collections.OrderedDict", kEncode, kBytes};

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
      pickled.fail("bytes that are not latin-1");
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
    if (pickled.is_object(kBytes)) {
      if (!pickled.arguments().empty()) pickled.fail("bytes that are made of something");
      return PlainValue::bytes("");
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

PlainValue plain_value(PickleRef pickled) { return Converter().convert(pickled); }

std::span<const std::string_view> plain_value_globals() { return kGlobals; }

void write(PickleWriter& out, const PlainValue& value) {
  std::visit(WritePickle{out}, value.data());
}

}  // namespace tessera::files
