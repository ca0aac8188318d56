#include "tessera/checkpoint/stored/tensor_bytes.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace tessera::checkpoint {
namespace {

/// Stays in a core's cache while checksums are computed and it is copied.
constexpr size_t kPart = size_t{128} << 10;

using Sink = std::function<void(std::span<const std::byte>)>;

/// A copy of the tensor in the first bytes of the buffer, which is made where it is too small.
/// Allocated for each copy, freed ones would stay in the heap.
at::Tensor copy_into(at::Tensor& buffer, const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  if (!buffer.defined() || buffer.numel() < bytes) buffer = at::empty({bytes}, at::kByte);
  const at::Tensor copy =
      buffer.narrow(0, 0, bytes).view(tensor.scalar_type()).view(tensor.sizes());
  copy.copy_(tensor);
  return copy;
}

void visit(const at::Tensor& tensor, at::Tensor& buffer, const Sink& sink) {
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  if (bytes == 0) return;
  const bool as_it_is =
      tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  if (as_it_is || bytes <= kBounce || tensor.dim() == 0) {
    const at::Tensor dense = as_it_is ? tensor : copy_into(buffer, tensor);
    std::span<const std::byte> left(static_cast<const std::byte*>(dense.const_data_ptr()),
                                    static_cast<size_t>(bytes));
    for (; !left.empty(); left = left.subspan(std::min(left.size(), kPart))) {
      sink(left.first(std::min(left.size(), kPart)));
    }
    return;
  }
  const int64_t rows = std::max<int64_t>(1, kBounce / (bytes / tensor.size(0)));
  for (int64_t row = 0; row < tensor.size(0); row += rows) {
    const int64_t count = std::min(rows, tensor.size(0) - row);
    const at::Tensor part = tensor.narrow(0, row, count);
    visit(count == 1 && tensor.size(0) > 1 ? part.select(0, 0) : part, buffer, sink);
  }
}

}  // namespace

void visit_bytes(const at::Tensor& tensor, const Sink& sink) {
  at::Tensor buffer;
  visit(tensor, buffer, sink);
}

}  // namespace tessera::checkpoint
