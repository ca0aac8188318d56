#include "tessera/checkpoint/stored/stored_state.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/stored/directory.h"
#include "tessera/checkpoint/stored/reader.h"
#include "tessera/checkpoint/stored/safetensors_reader.h"
#include "tessera/checkpoint/stored/tensor_bytes.h"
#include "tessera/files/release_pages.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

bool is_aligned(const at::Tensor& tensor) {
  const auto width = static_cast<uintptr_t>(tensor.element_size());
  const auto alignment = tensor.is_complex() ? width / 2 : width;
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % alignment == 0;
}

/// A copy in memory that is aligned.
at::Tensor aligned(const at::Tensor& source) {
  std::vector<int64_t> sizes = source.sizes().vec();
  std::vector<int64_t> strides = source.strides().vec();
  const int64_t width = source.element_size();
  for (auto& stride : strides) stride *= width;
  sizes.push_back(width);
  strides.push_back(1);
  const at::Tensor bytes = at::from_blob(const_cast<void*>(source.const_data_ptr()), sizes, strides,
                                         at::TensorOptions(at::kByte));
  return bytes.clone(at::MemoryFormat::Contiguous).view(source.scalar_type()).squeeze(-1);
}

}  // namespace

std::unique_ptr<StoredState> open_stored(const fs::path& path, StoredState::Options options) {
  const fs::path found = readable_directory(path);
  if (fs::is_directory(found) && fs::exists(found / dcp::kMetadataFile)) {
    return std::make_unique<CheckpointReader>(found, options);
  }
  if (is_safetensors(found)) return std::make_unique<SafetensorsReader>(found);
  throw InvalidArgument(join_text(path.string(), " is no checkpoint: neither a directory with ",
                                  dcp::kMetadataFile, " nor safetensors"));
}

void copy_elements(const at::Tensor& target, const at::Tensor& source) {
  if (source.numel() == 0) return;
  if (is_aligned(source)) {
    target.copy_(source);
    return;
  }
  const auto bytes = static_cast<int64_t>(source.nbytes());
  if (source.dim() == 0 || bytes <= kBounce) {
    target.copy_(aligned(source));
    return;
  }
  const int64_t rows = std::max<int64_t>(1, kBounce / (bytes / source.size(0)));
  for (int64_t row = 0; row < source.size(0); row += rows) {
    const int64_t count = std::min(rows, source.size(0) - row);
    target.narrow(0, row, count).copy_(aligned(source.narrow(0, row, count)));
  }
}

void copy_and_release(const at::Tensor& target, const at::Tensor& source) {
  if (source.numel() == 0) return;
  int64_t slowest = -1, elements = 1;  // from the first in memory to the last
  for (int64_t d = 0; d < source.dim(); ++d) {
    elements += (source.size(d) - 1) * source.stride(d);
    const bool varies = source.size(d) > 1 && source.stride(d) > 0;
    if (varies && (slowest < 0 || source.stride(d) > source.stride(slowest))) slowest = d;
  }
  const int64_t width = source.element_size();
  if (elements * width <= kBounce || slowest < 0) {
    copy_elements(target, source);
    files::release_pages({static_cast<const std::byte*>(source.const_data_ptr()),
                          static_cast<size_t>(elements * width)});
    return;
  }
  const int64_t rows = std::max<int64_t>(1, kBounce / (source.stride(slowest) * width));
  for (int64_t row = 0; row < source.size(slowest); row += rows) {
    const int64_t count = std::min(rows, source.size(slowest) - row);
    copy_and_release(target.narrow(slowest, row, count), source.narrow(slowest, row, count));
  }
}

}  // namespace tessera::checkpoint
