#include "tessera/files/json_cursor.h"

#include <limits>

#include "tessera/base/errors.h"

namespace tessera::files {
namespace {

using Json = JsonCursor::Json;

/// Appends the path from `from` to `wanted`, "nodes[3].target"; returns false if it is not inside.
bool path_to(const Json& from, const Json* wanted, std::string& path) {
  if (&from == wanted) return true;
  const size_t length = path.size();
  size_t i = 0;
  for (auto it = from.begin(); from.is_structured() && it != from.end(); ++it, ++i) {
    if (from.is_array()) {
      path += join_text("[", i, "]");
    } else {
      path += join_text(path.empty() ? "" : ".", it.key());
    }
    if (path_to(*it, wanted, path)) return true;
    path.resize(length);
  }
  return false;
}

}  // namespace

std::string JsonCursor::place() const {
  std::string path;
  path_to(*document_.root, json_, path);
  return path.empty() ? std::string(document_.name) : join_text(document_.name, ": ", path);
}

void JsonCursor::fail(std::string_view what) const {
  throw InvalidArgument(join_text(place(), " ", what));
}

void JsonCursor::fail_type(std::string_view wanted) const {
  fail(join_text("is ", json_->type_name(), ", not ", wanted));
}

void JsonCursor::require_object() const {
  if (!json_->is_object()) fail_type("an object");
}

JsonCursor JsonCursor::at(std::string_view key) const {
  if (const auto found = find(key)) return *found;
  require_object();
  fail(join_text("lacks \"", key, "\""));
}

std::optional<JsonCursor> JsonCursor::find(std::string_view key) const {
  require_object();
  const auto it = json_->find(key);
  if (it == json_->end() || it->is_null()) return std::nullopt;
  return JsonCursor(document_, *it);
}

JsonCursor JsonCursor::at(size_t i) const {
  if (!json_->is_array()) fail_type("a list");
  if (i >= json_->size()) fail(join_text("has ", json_->size(), " elements, not ", i + 1));
  return JsonCursor(document_, (*json_)[i]);
}

size_t JsonCursor::size() const {
  if (!json_->is_array() && !json_->is_object()) fail_type("a list or an object");
  return json_->size();
}

JsonCursor::Iterator JsonCursor::begin() const {
  if (!json_->is_array()) fail_type("a list");
  return {*this, 0};
}

std::string JsonCursor::text() const {
  if (!json_->is_string()) fail_type("text");
  return json_->get<std::string>();
}

int64_t JsonCursor::integer() const {
  if (json_->is_number_unsigned() &&
      json_->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    fail("is larger than 64 bits hold");
  }
  if (!json_->is_number_integer()) fail_type("an integer");
  return json_->get<int64_t>();
}

bool JsonCursor::boolean() const {
  if (!json_->is_boolean()) fail_type("true or false");
  return json_->get<bool>();
}

double JsonCursor::number() const {
  if (json_->is_string()) {
    const std::string& word = json_->get_ref<const std::string&>();
    if (word == "Infinity") return std::numeric_limits<double>::infinity();
    if (word == "-Infinity") return -std::numeric_limits<double>::infinity();
    if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
  }
  if (!json_->is_number()) fail_type("a number");
  return json_->get<double>();
}

}  // namespace tessera::files
