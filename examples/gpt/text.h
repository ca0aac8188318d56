#pragma once

#include <ATen/core/Tensor.h>
#include <tessera/mesh/device_mesh.h>

#include <cstdint>
#include <string>

/// The text to learn, in bytes.
namespace gpt {

inline constexpr int64_t kBytes = 256;  ///< the vocabulary

struct Batch {
  at::Tensor inputs;   ///< this rank's rows x context, replicated over tp
  at::Tensor targets;  ///< the byte after each
};

class Text {
 public:
  Text(const std::string& file, int64_t context, int64_t batch, int64_t seed);

  /// The rows of a step hang on the seed and the step alone, so every mesh sees the same ones. Each
  /// rank reads only its own.
  Batch batch(int64_t step, const tessera::DeviceMesh& mesh) const;

 private:
  std::string bytes_;
  int64_t context_;
  int64_t batch_;
  int64_t seed_;
};

}  // namespace gpt
