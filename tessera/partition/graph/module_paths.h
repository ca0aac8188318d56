#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/partition/graph/program_view.h"

/// The modules that an exported program was made from, as far as the file records them: the paths
/// in its nodes' metadata (nn_module_stack) and in the names of its weights.
namespace tessera::partition {

/// All of them, sorted: "", "layers.0", "layers.0.mlp", ...
std::vector<std::string> module_paths(const program::ExportedProgram& program);

/// The path of the innermost module that a node belongs to.
std::string module_of(const program::Node& node);

/// Values made by nodes of the module (or of modules inside it) and read by others.
std::vector<program::ValueId> values_leaving(const ProgramView& view, const std::string& path);

/// The dims of a weight that are the features that go in and those that come out, seen through
/// transposes and casts: {0, 1} of an nn.Linear's, {1, 0} of GPT-2's. For an embedding the words go
/// in. Where several nodes use it (tied weights), what nodes of the module at `path` do counts.
struct FeatureDims {
  int out = 0;
  int in = 1;
  bool is_embedding = false;
};
std::optional<FeatureDims> feature_dims(const ProgramView& view, program::ValueId weight,
                                        const std::string& path);

}  // namespace tessera::partition
