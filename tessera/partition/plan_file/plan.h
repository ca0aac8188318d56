#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/partition/graph/assignment.h"
#include "tessera/partition/graph/pins.h"
#include "tessera/partition/graph/program_view.h"

/// A plan says how a program is to be sharded: by module, by weight, or by value. As JSON:
///
///   {
///     "axis": "tp",                          the mesh axis of styles; default: tp, or the last one
///     "modules": {
///       "layers.*.attn.qkv": "colwise",      output features sharded
///       "layers.*.attn.out": "rowwise",      input features sharded: partial sums
///       "embed": "vocabulary",               shards rows of an embedding, outputs of a head
///       "layers.*.norm": "sequence",         results sharded along the sequence
///       "head": "replicate"
///     },
///     "weights": {"layers.0.mlp.up.weight": "S0"},   placements, one for each mesh axis: "R,S0"
///     "values": {"add_3": "S1"},             all nodes read the value so
///     "inputs": {"tokens": "S0"},            what each rank is given; default: all of it
///     "outputs": {"logits": "S2"},           default: all of it
///     "rest": "auto"                         weights that nothing is said of; default: replicate
///   }
///
/// Buffers that the program updates (keys and values of earlier tokens) are named under "weights";
/// where nothing is said of them they are sharded as is cheapest with what the plan demands.
/// Names may be patterns (base/path_pattern.h). One that matches nothing is an error that lists
/// near names.
namespace tessera::partition {

enum class Style : uint8_t { colwise, rowwise, sequence, vocabulary, replicate };

std::string_view style_name(Style style);

struct TESSERA_API Plan {
  std::string axis;
  std::vector<std::pair<std::string, Style>> modules;
  /// By name, placements as text.
  std::vector<std::pair<std::string, std::string>> weights;
  std::vector<std::pair<std::string, std::string>> values;
  std::vector<std::pair<std::string, std::string>> inputs;
  std::vector<std::pair<std::string, std::string>> outputs;
  bool rest_auto = false;

  /// Throws InvalidArgument that names `document` and the place.
  static Plan parse(std::string_view json, std::string_view document);
  std::string to_json() const;
};

/// What a plan demands of a program's values. Symbols that it asks to be sharded count as multiples
/// from then on (view.assume_multiple).
Pins mark(ProgramView& view, const Plan& plan);

/// The plan that gives an assignment again: the placements of all weights, inputs and outputs that
/// are not replicated, and of all buffers that the program updates.
Plan plan_of(const program::ExportedProgram& program, const Assignment& assignment);

}  // namespace tessera::partition
