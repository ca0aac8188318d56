#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/base/errors.h"
#include "tessera/files/json_cursor.h"

namespace tessera::files {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxDepth = 500;

/// Builds a document from the parser's events. The library's own builder searches an object for
/// every key that it adds, which takes quadratic time, and a repeated key replaces the value
/// before it.
class JsonBuilder {
 public:
  explicit JsonBuilder(std::string_view document) : document_(document) {}

  Json take() { return std::move(root_); }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }  // not of JSON text
  bool key(std::string& value) {
    key_ = std::move(value);
    return true;
  }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_array() {
    open_.pop_back();
    return true;
  }
  bool end_object() {
    require_unique_keys(*open_.back());
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
    throw InvalidArgument(join_text(document_, ": ", error.what()));
  }

 private:
  Json& place(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return parent.back();
    }
    std::vector<std::pair<const std::string, Json>>& members = parent.get_ref<Json::object_t&>();
    return members.emplace_back(std::move(key_), std::move(value)).second;
  }

  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  /// A parent's list of children does not grow while one of them is open, so the pointers hold.
  bool open(Json value) {
    open_.push_back(&place(std::move(value)));
    require(open_.size() < kMaxDepth, document_, ": lists and objects nested deeper than ",
            kMaxDepth);
    return true;
  }

  void require_unique_keys(const Json& object) const {
    std::vector<std::string_view> keys;
    keys.reserve(object.size());
    for (const auto& [key, value] : object.get_ref<const Json::object_t&>()) keys.push_back(key);
    std::ranges::sort(keys);
    const auto repeated = std::ranges::adjacent_find(keys);
    require(
        repeated == keys.end(), document_, ": the key \"", [&] { return std::string(*repeated); },
        "\" occurs twice in one object");
  }

  std::string_view document_;
  Json root_;
  std::vector<Json*> open_;
  std::string key_;
};

}  // namespace

nlohmann::ordered_json parse_json(std::string_view text, std::string_view document) {
  JsonBuilder builder(document);
  Json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace tessera::files
