#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/program/graph.h"

namespace tessera::program {

/// The role of a graph input.
enum class InputKind : uint8_t {
  user_input,
  parameter,
  buffer,
  tensor_constant,
  custom_obj,
  constant_input,  ///< a number or text that was passed when the program was exported
  token,           ///< orders effects
};

struct TESSERA_API InputSpec {
  InputKind kind = InputKind::user_input;
  /// The graph's input. Absent for a constant_input and a token, which only have a name.
  std::optional<Argument> arg;
  std::string name;        ///< of a constant_input or a token
  std::string target;      ///< "layers.0.weight" of a parameter, buffer, constant or object
  bool persistent = true;  ///< of a buffer: stored among the weights, not the constants
  std::string constant;    ///< of a constant_input: its value as JSON, {"as_int": 3}
};

/// The role of a graph output.
enum class OutputKind : uint8_t {
  user_output,
  loss_output,
  buffer_mutation,  ///< the buffer's value after the call
  parameter_mutation,
  user_input_mutation,
  gradient_to_parameter,
  gradient_to_user_input,
  token,
};

struct TESSERA_API OutputSpec {
  OutputKind kind = OutputKind::user_output;
  std::optional<Argument> arg;  ///< absent for a token
  std::string name;             ///< of a token
  std::string target;           ///< the buffer, parameter or user input that it refers to
};

/// Inputs and outputs of the graph in order, one spec each.
struct TESSERA_API Signature {
  std::vector<InputSpec> inputs;
  std::vector<OutputSpec> outputs;
};

}  // namespace tessera::program
