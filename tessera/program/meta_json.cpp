#include "tessera/program/meta_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/errors.h"

namespace tessera::program {

using files::JsonCursor;

std::string unknown_members(const JsonCursor& json, std::initializer_list<std::string_view> known) {
  Json rest = Json::object();
  json.each_member([&](std::string_view key, const JsonCursor& value) {
    if (std::ranges::find(known, key) == known.end()) rest[std::string(key)] = value.json();
  });
  return rest.empty() ? std::string() : rest.dump();
}

void add_unknown(Json& json, const std::string& unknown) {
  if (unknown.empty()) return;
  const Json members = Json::parse(unknown);
  for (const auto& [key, value] : members.items()) json[key] = value;
}

Size size_from_json(const JsonCursor& json) {
  if (const auto number = json.find("as_int")) return number->integer();
  const JsonCursor expr = json.at("as_expr");
  std::optional<int64_t> hint;
  if (const auto given = expr.find("hint")) hint = given->integer("as_int");
  try {
    return {Expression::parse(expr.text("expr_str")), hint};
  } catch (const InvalidArgument& error) {
    expr.at("expr_str").fail(error.what());
  }
}

Json size_to_json(const Size& size) {
  if (size.is_number()) return {{"as_int", size.number()}};
  Json hint;
  if (size.hint()) hint = {{"as_int", *size.hint()}};
  return {{"as_expr", {{"expr_str", size.expression()->to_srepr()}, {"hint", hint}}}};
}

namespace {

std::vector<Size> sizes_from_json(const JsonCursor& json) {
  std::vector<Size> out;
  for (const JsonCursor item : json) out.push_back(size_from_json(item));
  return out;
}

Json sizes_to_json(const std::vector<Size>& sizes) {
  Json out = Json::array();
  for (const auto& size : sizes) out.push_back(size_to_json(size));
  return out;
}

}  // namespace

Device device_from_json(const JsonCursor& json) {
  Device device{.type = json.text("type"), .index = {}};
  if (const auto index = json.find("index")) device.index = index->integer();
  return device;
}

Json device_to_json(const Device& device) {
  Json out = {{"type", device.type}, {"index", nullptr}};
  if (device.index) out["index"] = *device.index;
  return out;
}

DType dtype_from_json(const JsonCursor& json) {
  const auto dtype = dtype_from_code(json.integer());
  if (!dtype) json.fail(join_text("is ", json.integer(), ", which is not an element type"));
  return *dtype;
}

Layout layout_from_json(const JsonCursor& json) {
  const int64_t code = json.integer();
  if (code < 0 || code > static_cast<int64_t>(Layout::strided)) {
    json.fail(join_text("is ", code, ", which is not a layout"));
  }
  return static_cast<Layout>(code);
}

TensorMeta tensor_meta_from_json(const JsonCursor& json) {
  TensorMeta meta;
  meta.dtype = dtype_from_json(json.at("dtype"));
  meta.sizes = sizes_from_json(json.at("sizes"));
  meta.requires_grad = json.boolean("requires_grad");
  meta.device = device_from_json(json.at("device"));
  meta.strides = sizes_from_json(json.at("strides"));
  meta.storage_offset = size_from_json(json.at("storage_offset"));
  meta.layout = layout_from_json(json.at("layout"));
  if (meta.layout == Layout::strided && meta.sizes.size() != meta.strides.size()) {
    json.fail(join_text("has ", meta.sizes.size(), " sizes and ", meta.strides.size(), " strides"));
  }
  return meta;
}

Json tensor_meta_to_json(const TensorMeta& meta) {
  return {{"dtype", dtype_code(meta.dtype)},
          {"sizes", sizes_to_json(meta.sizes)},
          {"requires_grad", meta.requires_grad},
          {"device", device_to_json(meta.device)},
          {"strides", sizes_to_json(meta.strides)},
          {"storage_offset", size_to_json(meta.storage_offset)},
          {"layout", static_cast<int64_t>(meta.layout)}};
}

}  // namespace tessera::program
