#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::files {

/// A value inside a JSON document with its location, so that every error names the file and the
/// path: "model.pt2: models/model.json: graph_module.graph.nodes[3].target is a number, not text".
///
///   JsonCursor root(json, "model.pt2: models/model.json");
///   for (const JsonCursor node : root.at("graph").at("nodes")) node.text("target");
///
/// A cursor references the document, which must outlive it. A step does not allocate: the path is
/// computed only when an error needs it.
class JsonCursor {
 public:
  using Json = nlohmann::ordered_json;

  JsonCursor(const Json& json, std::string_view document)
      : document_{&json, document}, json_(&json) {}

  const Json& json() const { return *json_; }

  /// The member `key`; throws InvalidArgument if this is not an object or lacks it.
  JsonCursor at(std::string_view key) const;
  /// The same, or nullopt if it is missing or null.
  std::optional<JsonCursor> find(std::string_view key) const;
  /// Element `i` of an array.
  JsonCursor at(size_t i) const;
  /// Elements of an array, or members of an object.
  size_t size() const;
  bool is_object() const { return json_->is_object(); }
  bool is_array() const { return json_->is_array(); }
  bool is_null() const { return json_->is_null(); }

  std::string text() const;
  int64_t integer() const;
  bool boolean() const;
  /// A number, or the text that represents a non-finite one: "Infinity", "-Infinity", "NaN".
  double number() const;

  std::string text(std::string_view key) const { return at(key).text(); }
  int64_t integer(std::string_view key) const { return at(key).integer(); }
  bool boolean(std::string_view key) const { return at(key).boolean(); }

  /// Throws InvalidArgument: "<place> <what>".
  [[noreturn]] void fail(std::string_view what) const;
  std::string place() const;

  class Iterator;
  /// Over an array; throws InvalidArgument for anything else.
  Iterator begin() const;
  Iterator end() const;
  /// Calls `visit(key, value)` for every member of an object, in document order.
  template <typename Visit>
  void each_member(const Visit& visit) const {
    require_object();
    for (auto it = json_->begin(); it != json_->end(); ++it) {
      visit(std::string_view(it.key()), JsonCursor(document_, it.value()));
    }
  }

 private:
  struct Document {
    const Json* root;
    std::string_view name;
  };

  JsonCursor(const Document& document, const Json& json) : document_(document), json_(&json) {}

  void require_object() const;
  [[noreturn]] void fail_type(std::string_view wanted) const;

  Document document_;
  const Json* json_;
};

class JsonCursor::Iterator {
 public:
  Iterator(const JsonCursor& list, size_t i) : list_(list), i_(i) {}
  JsonCursor operator*() const { return list_.at(i_); }
  Iterator& operator++() {
    ++i_;
    return *this;
  }
  bool operator!=(const Iterator& other) const { return i_ != other.i_; }

 private:
  JsonCursor list_;
  size_t i_;
};

inline JsonCursor::Iterator JsonCursor::end() const { return {*this, json_->size()}; }

/// Parses `text`; throws InvalidArgument that names `document` and the position. Rejects a key that
/// occurs twice in an object, and nesting deeper than in any real file, since walking it would
/// exhaust the stack. Time and memory are linear in the text, but for the sorting of keys.
nlohmann::ordered_json parse_json(std::string_view text, std::string_view document);

}  // namespace tessera::files
