#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/program/graph.h"
#include "tessera/program/signature.h"

namespace tessera::program {

/// A parameter, buffer or constant: the location and layout of its bytes. Tensors that share memory
/// (tied weights) have the same path_name.
struct TESSERA_API Payload {
  std::string name;       ///< "layers.0.weight"
  std::string path_name;  ///< the record below data/weights or data/constants: "weight_0"
  bool is_param = false;
  bool use_pickle = false;         ///< a custom object or tensor subclass, readable only by Python
  std::optional<TensorMeta> meta;  ///< absent for objects
};

/// The range of a symbol; an absent bound is unlimited.
struct TESSERA_API Range {
  std::optional<int64_t> min;
  std::optional<int64_t> max;
};

/// An exported program as described by its file, without the bytes of its tensors. All members may
/// be changed; verify() checks the result.
struct TESSERA_API ExportedProgram {
  Graph graph;
  Signature signature;
  std::vector<Payload> weights;    ///< parameters and persistent buffers
  std::vector<Payload> constants;  ///< the other buffers, tensor constants, objects

  std::vector<std::pair<std::string, Range>> range_constraints;  ///< by symbol
  /// The nested structure of the call's arguments and of its result, as written by
  /// torch.utils._pytree (parsed by pytree.h); empty in programs without it.
  std::string in_spec;
  std::string out_spec;
  std::vector<std::string> forward_arg_names;
  std::string torch_version;
  std::vector<std::string> verifiers;  ///< "TRAINING", "ATEN"

  /// Everything else, as JSON text by member, in file order.
  std::string module_json;   ///< of graph_module: module_call_graph, metadata, ...
  std::string program_json;  ///< of the program: opset_version, schema_version, guards_code, ...

  const Payload* find_payload(std::string_view name) const;
};

/// The newest supported schema. A program of another major version is rejected.
constexpr int64_t kSchemaMajor = 8;

/// From and to the three JSON records of a `.pt2` archive. `document` is for error messages. Text
/// that was read is written back byte for byte.
struct TESSERA_API ProgramRecords {
  std::string model;
  std::string weights_config;
  std::string constants_config;
};
struct TESSERA_API ProgramTexts {
  std::string_view model;
  std::string_view weights_config;
  std::string_view constants_config;
};
TESSERA_API ExportedProgram parse_program(const ProgramTexts& texts, std::string_view document);
TESSERA_API ProgramRecords print_program(const ExportedProgram& program);

}  // namespace tessera::program
