#include "tessera/base/errors.h"
#include "tessera/files/pickle/pickle_reader.h"

namespace tessera::files {

std::string_view to_text(Pickle::Kind kind) {
  switch (kind) {
    case Pickle::Kind::none:
      return "None";
    case Pickle::Kind::boolean:
      return "a bool";
    case Pickle::Kind::integer:
      return "a whole number";
    case Pickle::Kind::real:
      return "a float";
    case Pickle::Kind::text:
      return "text";
    case Pickle::Kind::bytes:
      return "bytes";
    case Pickle::Kind::tuple:
      return "a tuple";
    case Pickle::Kind::list:
      return "a list";
    case Pickle::Kind::dict:
      return "a dict";
    case Pickle::Kind::global:
      return "a class or function";
    case Pickle::Kind::object:
      return "an object";
    case Pickle::Kind::persistent:
      return "a reference to a storage";
  }
  return "?";
}

void PickleRef::fail(std::string_view what) const {
  throw InvalidArgument(join_text(pickle_->document(), ": ", what));
}

const Pickle::Node& PickleRef::expect(Kind kind, std::string_view wanted) const {
  if (node().kind != kind) {
    fail(join_text("found ", to_text(node().kind), " where ", wanted, " belongs"));
  }
  return node();
}

bool PickleRef::boolean() const { return expect(Kind::boolean, "a bool").integer != 0; }
int64_t PickleRef::integer() const { return expect(Kind::integer, "a whole number").integer; }
std::string_view PickleRef::text() const { return expect(Kind::text, "text").text; }
std::string_view PickleRef::bytes() const { return expect(Kind::bytes, "bytes").text; }
std::string_view PickleRef::global() const {
  return expect(Kind::global, "a class or function").text;
}

double PickleRef::real() const {
  if (is(Kind::integer)) return static_cast<double>(node().integer);
  return expect(Kind::real, "a number").real;
}

std::vector<PickleRef> PickleRef::items() const {
  if (!is(Kind::list)) expect(Kind::tuple, "a tuple or list");
  std::vector<PickleRef> out;
  out.reserve(node().items.size());
  for (const auto index : node().items) out.emplace_back(*pickle_, index);
  return out;
}

std::vector<int64_t> PickleRef::integers() const {
  if (is_object("torch.Size")) {
    const auto given = arguments();
    if (given.size() != 1 || given[0].is(Kind::object)) fail("a torch.Size of no numbers");
    return given[0].integers();
  }
  std::vector<int64_t> out;
  for (const PickleRef item : items()) out.push_back(item.integer());
  return out;
}

std::vector<PickleRef::Member> PickleRef::members() const {
  const auto& items = expect(Kind::dict, "a dict").items;
  std::vector<Member> out;
  out.reserve(items.size() / 2);
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    out.push_back({{*pickle_, items[i]}, {*pickle_, items[i + 1]}});
  }
  return out;
}

std::string_view PickleRef::object_name() const {
  const auto& object = expect(Kind::object, "an object");
  return pickle_->nodes_[object.items[0]].text;
}

bool PickleRef::is_object(std::string_view name) const {
  return is(Kind::object) && object_name() == name;
}

std::vector<PickleRef> PickleRef::arguments() const {
  const auto& object = expect(Kind::object, "an object");
  return PickleRef(*pickle_, object.items[1]).items();
}

bool PickleRef::has_state() const { return is(Kind::object) && node().items.size() > 2; }

PickleRef PickleRef::state() const {
  const auto& object = expect(Kind::object, "an object");
  if (object.items.size() < 3) fail(join_text("a ", object_name(), " without its state"));
  return {*pickle_, object.items[2]};
}

const Pickle::Index* PickleRef::find_field(std::string_view name, size_t position) const {
  const auto& object = expect(Kind::object, "an object");
  if (object.items.size() > 2 && pickle_->nodes_[object.items[2]].kind == Kind::dict) {
    const auto& items = pickle_->nodes_[object.items[2]].items;
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      const auto& key = pickle_->nodes_[items[i]];
      if (key.kind == Kind::text && key.text == name) return &items[i + 1];
    }
  }
  const auto& arguments = pickle_->nodes_[object.items[1]].items;
  return position < arguments.size() ? &arguments[position] : nullptr;
}

PickleRef PickleRef::field(std::string_view name, size_t position) const {
  const auto* found = find_field(name, position);
  if (found == nullptr) fail(join_text("a ", object_name(), " without ", name));
  return {*pickle_, *found};
}

bool PickleRef::has_field(std::string_view name, size_t position) const {
  const auto* found = find_field(name, position);
  return found != nullptr && pickle_->nodes_[*found].kind != Kind::none;
}

PickleRef PickleRef::persistent_id() const {
  return {*pickle_, expect(Kind::persistent, "a reference to a storage").items[0]};
}

}  // namespace tessera::files
