#include "tessera/files/pickle/pickle_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "tessera/base/errors.h"
#include "tessera/files/pickle/pickle_opcodes.h"

namespace tessera::files {

/// The stack machine that executes a pickle, without the opcodes that run code.
class PickleMachine {
 public:
  PickleMachine(std::span<const std::byte> bytes, const Pickle::Options& options, Pickle& out)
      : bytes_(bytes), options_(options), out_(out) {}

  void run() {
    for (;;) {
      at_ = next_;
      const auto opcode = read<uint8_t>();
      if (opcode == pickle::kStop) break;
      step(opcode);
    }
    out_.root_ = pop();
  }

 private:
  using Index = Pickle::Index;
  using Kind = Pickle::Kind;
  using Node = Pickle::Node;

  [[noreturn]] void fail(std::string_view what) const {
    throw InvalidArgument(join_text(options_.document, ": byte ", at_, " of the pickle: ", what));
  }

  template <typename T>
  T read() {
    if (bytes_.size() - next_ < sizeof(T)) fail("it is truncated");
    T value{};
    std::memcpy(&value, bytes_.data() + next_, sizeof(T));
    next_ += sizeof(T);
    return value;
  }

  std::string_view read_text(uint64_t size) {
    if (bytes_.size() - next_ < size) fail("it is truncated");
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + next_, size);
    next_ += size;
    return text;
  }

  std::string_view read_line() {
    const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + next_,
                                bytes_.size() - next_);
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) fail("it is truncated");
    next_ += end + 1;
    return rest.substr(0, end);
  }

  Index add(Node node) {
    if (out_.nodes_.size() >= std::numeric_limits<Index>::max()) fail("too many values");
    out_.nodes_.push_back(std::move(node));
    return static_cast<Index>(out_.nodes_.size() - 1);
  }
  void push(Node node) { stack_.push_back(add(std::move(node))); }
  void push_integer(int64_t value) { push({.kind = Kind::integer, .integer = value}); }
  void push_text(Kind kind, std::string_view text) { push({.kind = kind, .text = text}); }

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Index pop() {
    if (stack_.size() <= floor()) fail("a value is missing on its stack");
    const Index value = stack_.back();
    stack_.pop_back();
    return value;
  }
  Node& top() {
    if (stack_.size() <= floor()) fail("a value is missing on its stack");
    return out_.nodes_[stack_.back()];
  }
  /// The values pushed since the last mark.
  std::vector<Index> pop_marked() {
    if (marks_.empty()) fail("a mark is missing on its stack");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Index> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }
  void push_tuple(size_t size) {
    std::vector<Index> items(size);
    for (size_t i = size; i > 0; --i) items[i - 1] = pop();
    push({.kind = Kind::tuple, .items = std::move(items)});
  }

  void push_long(uint64_t size) {
    const std::string_view text = read_text(size);
    if (size > sizeof(int64_t)) fail("a whole number of more than 64 bits");
    uint64_t value = size > 0 && (static_cast<unsigned char>(text.back()) & 0x80) != 0 ? ~0ULL : 0;
    std::memcpy(&value, text.data(), size);
    push_integer(static_cast<int64_t>(value));
  }

  void push_real() {
    uint64_t bits = __builtin_bswap64(read<uint64_t>());  // the only big-endian number
    push({.kind = Kind::real, .real = std::bit_cast<double>(bits)});
  }

  void push_global(std::string_view module, std::string_view name) {
    std::string full = join_text(module, ".", name);
    if (std::ranges::find(options_.globals, full) == options_.globals.end()) {
      fail(join_text("it names ", full, ", which does not occur in such a file"));
    }
    out_.names_.push_back(std::move(full));
    push_text(Kind::global, out_.names_.back());
  }

  void push_object() {
    const Index arguments = pop();
    const Index callable = pop();
    if (out_.nodes_[callable].kind != Kind::global)
      fail("it calls what is not a class or function");
    if (out_.nodes_[arguments].kind != Kind::tuple) fail("its arguments are not a tuple");
    if (out_.nodes_[callable].text == "collections.OrderedDict" &&
        out_.nodes_[arguments].items.empty()) {
      return push({.kind = Kind::dict});
    }
    push({.kind = Kind::object, .items = {callable, arguments}});
  }

  void build() {
    const Index state = pop();
    Node& object = top();
    if (object.kind == Kind::dict) return;  // attributes of an OrderedDict
    if (object.kind != Kind::object) fail("it sets the state of what is not an object");
    object.items.resize(2);
    object.items.push_back(state);
  }

  void append(const std::vector<Index>& items) {
    Node& list = top();
    if (list.kind != Kind::list) fail("it appends to what is not a list");
    list.items.insert(list.items.end(), items.begin(), items.end());
  }

  void set_items(const std::vector<Index>& items) {
    Node& dict = top();
    if (dict.kind != Kind::dict) fail("it sets items of what is not a dict");
    if (items.size() % 2 != 0) fail("a key without a value");
    dict.items.insert(dict.items.end(), items.begin(), items.end());
  }

  void put(uint64_t key) {
    top();
    memo_[key] = stack_.back();
  }
  void get(uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) fail(join_text("it recalls value ", key, ", which was not stored"));
    stack_.push_back(found->second);
  }

  void step(uint8_t opcode) {
    using namespace pickle;
    switch (opcode) {
      case kProtocol:
        if (const auto version = read<uint8_t>(); version > 5) {
          fail(join_text("protocol ", static_cast<int>(version), " is not known"));
        }
        return;
      case kFrame:
        read<uint64_t>();
        return;
      case kMark:
        marks_.push_back(stack_.size());
        return;
      case kPop:
        pop();
        return;
      case kPopMark:
        pop_marked();
        return;
      case kMemoize:
        return put(memo_.size());
      case kBinPut:
        return put(read<uint8_t>());
      case kLongBinPut:
        return put(read<uint32_t>());
      case kBinGet:
        return get(read<uint8_t>());
      case kLongBinGet:
        return get(read<uint32_t>());
      default:
        return step_object(opcode);
    }
  }

  void step_object(uint8_t opcode) {
    using namespace pickle;
    switch (opcode) {
      case kReduce:
      case kNewObject:
        return push_object();
      case kBuild:
        return build();
      case kAppend:
        return append({pop()});
      case kAppends:
        return append(pop_marked());
      case kSetItems:
        return set_items(pop_marked());
      case kSetItem: {
        const Index value = pop();
        const Index key = pop();
        return set_items({key, value});
      }
      case kBinPersistentId: {
        const Index id = pop();
        return push({.kind = Kind::persistent, .items = {id}});
      }
      case kGlobal: {
        const std::string_view module = read_line();
        return push_global(module, read_line());
      }
      case kStackGlobal: {
        const Index name = pop();
        const Index module = pop();
        if (out_.nodes_[name].kind != Kind::text || out_.nodes_[module].kind != Kind::text) {
          fail("the name of a class is not text");
        }
        return push_global(out_.nodes_[module].text, out_.nodes_[name].text);
      }
      default:
        return step_value(opcode);
    }
  }

  void step_value(uint8_t opcode) {
    using namespace pickle;
    switch (opcode) {
      case kNone:
        return push({});
      case kTrue:
        return push({.kind = Kind::boolean, .integer = 1});
      case kFalse:
        return push({.kind = Kind::boolean});
      case kBinInt:
        return push_integer(read<int32_t>());
      case kBinInt1:
        return push_integer(read<uint8_t>());
      case kBinInt2:
        return push_integer(read<uint16_t>());
      case kLong1:
        return push_long(read<uint8_t>());
      case kLong4:
        return push_long(read<uint32_t>());
      case kBinFloat:
        return push_real();
      case kShortBinUnicode:
        return push_text(Kind::text, read_text(read<uint8_t>()));
      case kBinUnicode:
        return push_text(Kind::text, read_text(read<uint32_t>()));
      case kBinUnicode8:
        return push_text(Kind::text, read_text(read<uint64_t>()));
      case kShortBinString:
        return push_text(Kind::text, read_text(read<uint8_t>()));
      case kBinString:
        return push_text(Kind::text, read_text(read<uint32_t>()));
      case kShortBinBytes:
        return push_text(Kind::bytes, read_text(read<uint8_t>()));
      case kBinBytes:
        return push_text(Kind::bytes, read_text(read<uint32_t>()));
      case kBinBytes8:
        return push_text(Kind::bytes, read_text(read<uint64_t>()));
      case kEmptyTuple:
        return push({.kind = Kind::tuple});
      case kEmptyList:
        return push({.kind = Kind::list});
      case kEmptyDict:
        return push({.kind = Kind::dict});
      case kTuple1:
        return push_tuple(1);
      case kTuple2:
        return push_tuple(2);
      case kTuple3:
        return push_tuple(3);
      case kTuple:
        return push({.kind = Kind::tuple, .items = pop_marked()});
      default:
        fail(join_text("opcode ", static_cast<int>(opcode), " does not occur in such a file"));
    }
  }

  std::span<const std::byte> bytes_;
  const Pickle::Options& options_;
  Pickle& out_;
  size_t at_ = 0;  // of the opcode, for error messages
  size_t next_ = 0;
  std::vector<Index> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Index> memo_;
};

Pickle Pickle::parse(std::span<const std::byte> bytes, const Options& options) {
  static_assert(std::endian::native == std::endian::little);
  Pickle out;
  out.document_ = options.document;
  PickleMachine(bytes, options, out).run();
  return out;
}

PickleRef Pickle::root() const { return {*this, root_}; }

}  // namespace tessera::files
