#include "tessera/checkpoint/stored/stored_box.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/stored/tensor_bytes.h"

namespace tessera::checkpoint {

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box out = a;
  for (size_t d = 0; d < a.begin.size(); ++d) {
    out.begin[d] = std::max(a.begin[d], b.begin[d]);
    out.end[d] = std::min(a.end[d], b.end[d]);
    if (out.begin[d] >= out.end[d]) return std::nullopt;
  }
  return out;
}

DType dtype_of(StoredState& stored, const std::string& name, const dcp::TensorEntry& entry) {
  if (entry.dtype) return *entry.dtype;
  for (const auto& chunk : entry.chunks) {
    if (chunk.box.numel() == 0) continue;
    Box first = chunk.box;
    for (size_t d = 0; d < first.begin.size(); ++d) first.end[d] = first.begin[d] + 1;
    return stored.find(name, chunk, first).dtype;
  }
  throw InvalidArgument(
      join_text(stored.path().string(), ": the type of ", name, " is not in the metadata"));
}

at::Tensor read_box(StoredState& stored, const std::string& name, const dcp::TensorEntry& entry,
                    DType dtype, const Box& box) {
  at::Tensor out = at::empty(box.shape(), at::TensorOptions(static_cast<at::ScalarType>(dtype)));
  read_box_into(out, stored, name, entry, box);
  return out;
}

void read_box_into(const at::Tensor& target, StoredState& stored, const std::string& name,
                   const dcp::TensorEntry& entry, const Box& box) {
  ElementReader reader;
  for (const auto& chunk : entry.chunks) {
    const auto part = intersection(box, chunk.box);
    if (!part) continue;
    const StoredElements source = stored.find(name, chunk, *part);
    const auto dtype = static_cast<DType>(target.scalar_type());
    require(source.dtype == dtype, stored.path().string(), ": a chunk of ", name, " is ",
            dtype_name(source.dtype), ", the tensor is ", dtype_name(dtype));
    at::Tensor place = target;
    for (size_t d = 0; d < box.begin.size(); ++d) {
      place = place.narrow(static_cast<int64_t>(d), part->begin[d] - box.begin[d],
                           part->end[d] - part->begin[d]);
    }
    reader.read(place, source);
  }
}

void for_each_piece(const Box& box, int64_t most, const std::function<void(const Box&)>& visit) {
  const int64_t numel = box.numel();
  if (numel == 0) return;
  size_t d = 0;
  while (d < box.begin.size() && box.end[d] - box.begin[d] == 1) ++d;
  if (numel <= most || d == box.begin.size()) return visit(box);
  const int64_t size = box.end[d] - box.begin[d];
  const int64_t rows = std::clamp<int64_t>(most / (numel / size), 1, size);
  for (int64_t at = box.begin[d]; at < box.end[d]; at += rows) {
    Box piece = box;
    piece.begin[d] = at;
    piece.end[d] = std::min(at + rows, box.end[d]);
    for_each_piece(piece, most, visit);
  }
}

void visit_box_bytes(StoredState& stored, const std::string& name, const dcp::TensorEntry& entry,
                     DType dtype, const Box& box, at::Tensor& buffer,
                     const std::function<void(std::span<const std::byte>)>& sink) {
  const int64_t most = std::min(kBounce / dtype_bytes(dtype), box.numel());
  const int64_t bytes = most * dtype_bytes(dtype);
  if (!buffer.defined() || buffer.numel() < bytes) buffer = at::empty({bytes}, at::kByte);
  const at::Tensor typed = buffer.narrow(0, 0, bytes).view(static_cast<at::ScalarType>(dtype));
  for_each_piece(box, most, [&](const Box& piece) {
    const at::Tensor elements = typed.narrow(0, 0, piece.numel());
    read_box_into(elements.view(piece.shape()), stored, name, entry, piece);
    visit_bytes(elements, sink);
  });
}

}  // namespace tessera::checkpoint
