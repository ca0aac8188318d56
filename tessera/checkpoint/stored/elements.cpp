#include "tessera/checkpoint/stored/elements.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>

namespace tessera::checkpoint {
namespace {

constexpr int64_t kBlock = int64_t{1} << 20;
/// For other devices, which take large copies.
constexpr int64_t kDeviceBlock = int64_t{16} << 20;
/// Below this, reading what is between two rows is cheaper than a second system call.
constexpr int64_t kGap = int64_t{16} << 10;

/// From the first element to the last in the file, in elements, without dim `except`.
int64_t span_of(const StoredElements& source, std::optional<size_t> except = std::nullopt) {
  int64_t out = 1;
  for (size_t d = 0; d < source.sizes.size(); ++d) {
    if (d != except) out += (source.sizes[d] - 1) * source.strides[d];
  }
  return out;
}

/// The dim with the largest stride, of those with more than one element.
std::optional<size_t> slowest_dim(const StoredElements& source) {
  std::optional<size_t> out;
  for (size_t d = 0; d < source.sizes.size(); ++d) {
    if (source.sizes[d] <= 1 || source.strides[d] == 0) continue;
    if (!out || source.strides[d] > source.strides[*out]) out = d;
  }
  return out;
}

/// Whether the target's memory has the same bytes in the same order as the file.
bool same_layout(const at::Tensor& target, const StoredElements& source, int64_t span) {
  if (!target.is_cpu() || target.is_conj() || target.is_neg()) return false;
  if (target.scalar_type() != static_cast<at::ScalarType>(source.dtype)) return false;
  if (span != target.numel()) return false;  // gaps in the file are not gaps of the target
  for (size_t d = 0; d < source.sizes.size(); ++d) {
    if (source.sizes[d] > 1 && source.strides[d] != target.stride(static_cast<int64_t>(d))) {
      return false;
    }
  }
  return true;
}

}  // namespace

void ElementReader::read(const at::Tensor& target, const StoredElements& source) {
  if (target.numel() == 0) return;
  const int64_t width = dtype_bytes(source.dtype);
  const int64_t span = span_of(source);
  if (same_layout(target, source, span)) {
    auto* const to = static_cast<std::byte*>(target.mutable_data_ptr());
    source.file->read(source.offset, {to, static_cast<size_t>(span * width)});
    return;
  }
  const auto slowest = slowest_dim(source);
  const int64_t block = target.is_cpu() ? kBlock : kDeviceBlock;
  const int64_t step = slowest ? source.strides[*slowest] * width : 0;
  const bool has_gaps = slowest && step - span_of(source, slowest) * width > kGap;
  if (!slowest || (span * width <= block && !has_gaps)) {
    return read_part(target, source, static_cast<uint64_t>(span * width));
  }
  const int64_t rows = has_gaps ? 1 : std::max<int64_t>(1, block / step);
  StoredElements part = source;
  for (int64_t row = 0; row < source.sizes[*slowest]; row += rows) {
    part.sizes[*slowest] = std::min(rows, source.sizes[*slowest] - row);
    part.offset = source.offset + static_cast<uint64_t>(row * step);
    read(target.narrow(static_cast<int64_t>(*slowest), row, part.sizes[*slowest]), part);
  }
}

void ElementReader::read_part(const at::Tensor& target, const StoredElements& source,
                              uint64_t span) {
  const auto bytes = static_cast<int64_t>(span);
  if (!buffer_.defined() || buffer_.numel() < bytes) buffer_ = at::empty({bytes}, at::kByte);
  source.file->read(source.offset, {static_cast<std::byte*>(buffer_.mutable_data_ptr()), span});
  const at::Tensor typed =
      buffer_.narrow(0, 0, bytes).view(static_cast<at::ScalarType>(source.dtype));
  target.copy_(typed.as_strided(source.sizes, source.strides));
}

}  // namespace tessera::checkpoint
