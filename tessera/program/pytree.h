#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::program {

/// The nested structure of a call's arguments or of its result, as written by torch.utils._pytree:
/// tuples, lists, dicts and named tuples, with tensors and numbers as leaves, in order.
///
///   parse_pytree(program.out_spec).leaf_names("")   -> {"logits", "best.0", "best.1", "ramp"}
struct Pytree {
  std::string type;               ///< "builtins.tuple", "builtins.dict", ...; empty: a leaf
  std::vector<std::string> keys;  ///< of a dict, by child
  std::vector<Pytree> children;

  bool is_leaf() const { return type.empty(); }
  size_t leaves() const;
  /// The path of each leaf: keys of dicts, positions in tuples and lists, joined by dots below
  /// `root`. A single leaf is `root` itself.
  std::vector<std::string> leaf_names(std::string_view root) const;
};

/// Throws InvalidArgument for text that is not such a structure.
Pytree parse_pytree(std::string_view text);

/// The names of the user's inputs, in graph order: positional arguments by the names of forward's
/// parameters, keyword arguments by theirs, nested values by their path. Without names, positional
/// arguments are arg0, arg1, ...
std::vector<std::string> input_names(const Pytree& in_spec,
                                     const std::vector<std::string>& forward_arg_names);
/// The same for results: "output" for a single tensor, "0", "1", ... for a tuple, keys of a dict.
std::vector<std::string> output_names(const Pytree& out_spec);

}  // namespace tessera::program
