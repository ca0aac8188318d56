#pragma once

#include "tessera/files/json_cursor.h"
#include "tessera/program/graph.h"
#include "tessera/program/meta_json.h"

/// Graphs from and to the JSON of exported programs. Reading checks types and that names exist;
/// verify.h checks the rest. Writing what was read gives the same JSON, member by member.
namespace tessera::program {

Graph graph_from_json(const files::JsonCursor& json);
Json graph_to_json(const Graph& graph);

Argument argument_from_json(const files::JsonCursor& json, const Graph& graph);
Json argument_to_json(const Argument& argument, const Graph& graph);

}  // namespace tessera::program
