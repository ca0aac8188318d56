#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/files/input_file.h"

namespace tessera::checkpoint {

/// Where the elements of a box are stored: a strided tensor in a file.
struct StoredElements {
  std::shared_ptr<const files::InputFile> file;
  DType dtype = DType::f32;
  uint64_t offset = 0;  ///< of the first element, in bytes
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  ///< in elements, none negative
};

/// Copies elements from files into tensors. What has the layout of the target is read straight into
/// it; anything else is read into a buffer of 1 MiB, which stays in a core's cache, and converted
/// from there. Gaps of more than 16 KiB between two rows are not read.
class ElementReader {
 public:
  /// Writes into `target`, a plain tensor of the same sizes, converting to its type.
  void read(const at::Tensor& target, const StoredElements& source);

 private:
  void read_part(const at::Tensor& target, const StoredElements& source, uint64_t span);

  at::Tensor buffer_;
};

}  // namespace tessera::checkpoint
