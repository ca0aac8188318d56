#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Reads Python's pickle format as data. Nothing is imported, called or executed: a class is a
/// name, a constructed object is that name with its arguments and its state, and only names that
/// the caller lists are accepted.
///
///   constexpr std::string_view kAllowed[] = {"torch.Size", "collections.OrderedDict"};
///   const Pickle pickle = Pickle::parse(bytes, {.document = "d/.metadata", .globals = kAllowed});
///   for (auto [key, value] : pickle.root().members()) key.text(), value.integer();
///
/// Protocols 0 to 5 as far as PyTorch's files use them (no in-memory buffers, no sets, no class
/// registry). Anything else, including a truncated pickle, throws InvalidArgument that names the
/// document and the byte.
namespace tessera::files {

class PickleRef;

class Pickle {
 public:
  enum class Kind : uint8_t {
    none,
    boolean,
    integer,
    real,
    text,
    bytes,
    tuple,
    list,
    dict,
    global,      ///< "module.name"
    object,      ///< a global called with arguments
    persistent,  ///< a reference to something outside, such as torch.save's storages
  };

  struct Options {
    std::string document;  ///< names the pickle in errors
    std::span<const std::string_view> globals;
  };

  /// The bytes must outlive the result: texts reference them.
  static Pickle parse(std::span<const std::byte> bytes, const Options& options);

  PickleRef root() const;
  const std::string& document() const { return document_; }

 private:
  friend class PickleMachine;
  friend class PickleRef;

  using Index = uint32_t;
  /// Nodes reference each other by index, so a list that contains itself is harmless.
  struct Node {
    Kind kind = Kind::none;
    int64_t integer = 0;  // also boolean
    double real = 0;
    std::string_view text{};     // text, bytes, global
    std::vector<Index> items{};  // tuple, list; dict: key, value, ...; object: see below
  };
  // items of an object: the global, its arguments (a tuple), the state if it has one.

  std::string document_;
  std::deque<Node> nodes_;
  std::deque<std::string> names_;  // storage of globals' texts
  Index root_ = 0;
};

/// A value inside a Pickle, which must outlive it. Accessors throw InvalidArgument, with the
/// document and `what`, if the value is of another kind.
class PickleRef {
 public:
  using Kind = Pickle::Kind;

  PickleRef(const Pickle& pickle, Pickle::Index index) : pickle_(&pickle), index_(index) {}

  Kind kind() const { return node().kind; }
  bool is(Kind kind) const { return node().kind == kind; }
  bool is_none() const { return is(Kind::none); }

  bool boolean() const;
  int64_t integer() const;
  double real() const;  ///< also from an integer
  std::string_view text() const;
  std::string_view bytes() const;
  std::string_view global() const;

  /// Elements of a tuple or list.
  std::vector<PickleRef> items() const;
  /// The integers of a tuple, a list, or a torch.Size of one.
  std::vector<int64_t> integers() const;

  struct Member;
  /// Of a dict.
  std::vector<Member> members() const;

  /// Whether it is an object of this class, or the result of this function.
  bool is_object(std::string_view name) const;
  std::string_view object_name() const;
  std::vector<PickleRef> arguments() const;
  /// The state that was set after construction; None if there is none.
  PickleRef state() const;
  bool has_state() const;
  /// A field of an object: from its state (a dict), else argument `position`. Throws if there is
  /// neither.
  PickleRef field(std::string_view name, size_t position) const;
  /// Whether the field exists and is not None.
  bool has_field(std::string_view name, size_t position) const;
  /// The id of a persistent value.
  PickleRef persistent_id() const;

  [[noreturn]] void fail(std::string_view what) const;

 private:
  const Pickle::Node& node() const { return pickle_->nodes_[index_]; }
  const Pickle::Node& expect(Kind kind, std::string_view wanted) const;
  const Pickle::Index* find_field(std::string_view name, size_t position) const;

  const Pickle* pickle_;
  Pickle::Index index_;
};

struct PickleRef::Member {
  PickleRef key;
  PickleRef value;
};

std::string_view to_text(Pickle::Kind kind);

}  // namespace tessera::files
