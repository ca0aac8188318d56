#pragma once

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "tessera/files/json_cursor.h"
#include "tessera/program/tensor_meta.h"

/// Tensor metadata of exported programs, from and to JSON. Errors name the location in the file.
namespace tessera::program {

using Json = nlohmann::ordered_json;

TensorMeta tensor_meta_from_json(const files::JsonCursor& json);
Json tensor_meta_to_json(const TensorMeta& meta);
Size size_from_json(const files::JsonCursor& json);
Json size_to_json(const Size& size);
Device device_from_json(const files::JsonCursor& json);
Json device_to_json(const Device& device);
DType dtype_from_json(const files::JsonCursor& json);
Layout layout_from_json(const files::JsonCursor& json);

/// The members of an object that `known` does not list, as JSON text, or "" if there are none; and
/// the reverse.
std::string unknown_members(const files::JsonCursor& json,
                            std::initializer_list<std::string_view> known);
void add_unknown(Json& json, const std::string& unknown);

}  // namespace tessera::program
