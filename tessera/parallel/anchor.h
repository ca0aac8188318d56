#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/dtensor/kernels/weight_style.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/sharding/placement.h"

/// The part of a style that acts when an op uses the weight.
namespace tessera::parallel {

/// The ops in which a weight takes its role. Others (optimizers, initialization) are left alone.
enum class OpFamily : uint8_t {
  linear,       ///< linear, matmul, mm, addmm
  embedding,    ///< embedding, embedding_bag
  convolution,  ///< conv1d, ..., conv_transpose3d, convolution
  norm,         ///< layer_norm, rms_norm; mul, in norms that a program writes out
};

struct Anchor {
  OpFamily family = OpFamily::linear;
  DeviceMesh mesh = {};   ///< for plain inputs
  std::string axis = {};  ///< that the style splits over
  std::string text = {};  ///< of the style, for messages and recorders
  /// Of a plain input; no value: sharded over the features if the style shards it so, else
  /// replicated.
  std::optional<Placement> plain_input = std::nullopt;
  /// The input's placement on the axis; no value: as it comes.
  std::optional<Placement> input = std::nullopt;
  bool input_by_features = false;  ///< sharded over the features instead, whatever dim these are
  std::optional<Placement> output = std::nullopt;
  /// The weight is used as it is by mm(x, weight) and embedding(weight, x), and transposed by
  /// linear.
  bool in_by_out = false;
  int64_t overlap = 1;  ///< pieces of async tensor parallelism
};

/// The style of a weight. A weight that two modules share (embedding and output head) has an anchor
/// for each.
TESSERA_API std::shared_ptr<const dtensor::WeightStyle> anchored_style(std::vector<Anchor> anchors);

}  // namespace tessera::parallel
