#pragma once

#include "tessera/files/json_cursor.h"
#include "tessera/program/meta_json.h"
#include "tessera/program/signature.h"

namespace tessera::program {

Signature signature_from_json(const files::JsonCursor& json, const Graph& graph);
Json signature_to_json(const Signature& signature, const Graph& graph);

}  // namespace tessera::program
