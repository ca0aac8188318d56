#include "tessera/program/pytree.h"

#include <nlohmann/json.hpp>

#include "tessera/base/errors.h"
#include "tessera/files/json_cursor.h"

namespace tessera::program {
namespace {

using files::JsonCursor;

constexpr std::string_view kDocument = "call structure";

/// A dict's context is the JSON text of its keys; likewise for ordered dicts and named tuples.
std::vector<std::string> keys_of(const JsonCursor& json, size_t children) {
  std::vector<std::string> out;
  const auto context = json.find("context");
  if (!context || !context->json().is_string()) return out;
  const auto keys = nlohmann::ordered_json::parse(context->text(), nullptr, false);
  if (!keys.is_array() || keys.size() != children) return out;
  for (const auto& key : keys) out.push_back(key.is_string() ? key.get<std::string>() : key.dump());
  return out;
}

Pytree read(const JsonCursor& json) {
  Pytree out;
  if (const auto type = json.find("type")) out.type = type->text();
  for (const JsonCursor child : json.at("children_spec")) out.children.push_back(read(child));
  if (out.is_leaf() && !out.children.empty()) json.fail("has children but no type");
  out.keys = keys_of(json, out.children.size());
  return out;
}

void append_names(const Pytree& tree, const std::string& path, std::vector<std::string>& out) {
  if (tree.is_leaf()) {
    out.push_back(path);
    return;
  }
  for (size_t i = 0; i < tree.children.size(); ++i) {
    const std::string key = tree.keys.empty() ? std::to_string(i) : tree.keys[i];
    append_names(tree.children[i], path.empty() ? key : join_text(path, ".", key), out);
  }
}

}  // namespace

size_t Pytree::leaves() const {
  if (is_leaf()) return 1;
  size_t count = 0;
  for (const auto& child : children) count += child.leaves();
  return count;
}

std::vector<std::string> Pytree::leaf_names(std::string_view root) const {
  std::vector<std::string> out;
  append_names(*this, std::string(root), out);
  return out;
}

Pytree parse_pytree(std::string_view text) {
  const auto json = files::parse_json(text, kDocument);
  const JsonCursor root(json, kDocument);
  if (root.size() != 2 || root.at(size_t{0}).integer() != 1) root.fail("is not of version 1");
  return read(root.at(size_t{1}));
}

std::vector<std::string> input_names(const Pytree& in_spec,
                                     const std::vector<std::string>& forward_arg_names) {
  require(in_spec.children.size() == 2, "call structure: an input is (args, kwargs), found ",
          in_spec.children.size(), " parts");
  std::vector<std::string> out;
  const Pytree& args = in_spec.children[0];
  for (size_t i = 0; i < args.children.size(); ++i) {
    const std::string name =
        i < forward_arg_names.size() ? forward_arg_names[i] : join_text("arg", i);
    append_names(args.children[i], name, out);
  }
  append_names(in_spec.children[1], "", out);
  return out;
}

std::vector<std::string> output_names(const Pytree& out_spec) {
  return out_spec.leaf_names(out_spec.is_leaf() ? "output" : "");
}

}  // namespace tessera::program
