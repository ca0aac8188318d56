#include "tessera/exec/blocks.h"

#include <ATen/Parallel.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstring>

#include "tessera/base/shape.h"
#include "tessera/sharding/sharding.h"

namespace tessera::exec {
namespace {

/// Below this size a second thread costs more than it saves.
constexpr int64_t kParallelBytes = 4 << 20;

/// Drops dims of size 1 and merges a dim with the next if both sides traverse them as one.
void merge_dims(Block& block) {
  Block out{block.from, block.to, {}, {}, {}};
  for (size_t d = 0; d < block.sizes.size(); ++d) {
    if (block.sizes[d] == 1) continue;
    if (!out.sizes.empty() && out.from_strides.back() == block.sizes[d] * block.from_strides[d] &&
        out.to_strides.back() == block.sizes[d] * block.to_strides[d]) {
      out.sizes.back() *= block.sizes[d];
      out.from_strides.back() = block.from_strides[d];
      out.to_strides.back() = block.to_strides[d];
    } else {
      out.sizes.push_back(block.sizes[d]);
      out.from_strides.push_back(block.from_strides[d]);
      out.to_strides.push_back(block.to_strides[d]);
    }
  }
  if (out.sizes.empty()) {
    out.sizes = {1};
    out.from_strides = {1};
    out.to_strides = {1};
  }
  block = std::move(out);
}

void copy_nested(const Block& block, size_t dim, const char* from, char* to, int64_t bytes) {
  const bool last = dim + 1 == block.sizes.size();
  const int64_t from_step = block.from_strides[dim] * bytes;
  const int64_t to_step = block.to_strides[dim] * bytes;
  if (last && from_step == bytes && to_step == bytes) {
    std::memcpy(to, from, static_cast<size_t>(block.sizes[dim] * bytes));
    return;
  }
  for (int64_t i = 0; i < block.sizes[dim]; ++i, from += from_step, to += to_step) {
    if (last) {
      std::memcpy(to, from, static_cast<size_t>(bytes));
    } else {
      copy_nested(block, dim + 1, from, to, bytes);
    }
  }
}

/// Copies elements [begin, end) of a block, in destination order, to `to`.
void copy_stretch(const Block& block, size_t dim, const char* from, char* to, int64_t bytes,
                  int64_t begin, int64_t end) {
  const int64_t step = block.from_strides[dim] * bytes;
  if (dim + 1 == block.sizes.size()) {
    if (step == bytes) {
      std::memcpy(to, from + begin * bytes, static_cast<size_t>((end - begin) * bytes));
      return;
    }
    for (int64_t i = begin; i < end; ++i, to += bytes) {
      std::memcpy(to, from + i * step, static_cast<size_t>(bytes));
    }
    return;
  }
  const int64_t inner = block.to_strides[dim];
  for (int64_t i = begin / inner; i * inner < end; ++i) {
    const int64_t first = std::max(begin - i * inner, int64_t{0});
    const int64_t last = std::min(end - i * inner, inner);
    copy_stretch(block, dim + 1, from + i * step, to, bytes, first, last);
    to += (last - first) * bytes;
  }
}

bool is_dense_in_destination(const Block& block) {
  int64_t stride = 1;
  for (size_t d = block.sizes.size(); d-- > 0; stride *= block.sizes[d]) {
    if (block.to_strides[d] != stride) return false;
  }
  return true;
}

void copy_block(const Block& block, const char* from, char* to, int64_t bytes) {
  from += block.from * bytes;
  to += block.to * bytes;
  if (block.numel() * bytes < kParallelBytes || at::get_num_threads() == 1 ||
      at::in_parallel_region()) {
    copy_nested(block, 0, from, to, bytes);
    return;
  }
  at::parallel_for(0, block.sizes[0], 1, [&](int64_t begin, int64_t end) {
    Block part = block;
    part.sizes[0] = end - begin;
    copy_nested(part, 0, from + begin * block.from_strides[0] * bytes,
                to + begin * block.to_strides[0] * bytes, bytes);
  });
}

}  // namespace

int64_t Block::numel() const { return numel_of(sizes); }

void BlockCopy::add(const Overlap& overlap, std::span<const int64_t> from_shape,
                    int64_t from_offset, std::span<const int64_t> to_shape, int64_t to_offset) {
  if (overlap.empty()) return;
  const auto from_strides = contiguous_stride(from_shape);
  const auto to_strides = contiguous_stride(to_shape);
  std::vector<Block> blocks = {{from_offset, to_offset, {}, {}, {}}};
  for (size_t dim = 0; dim < overlap.runs.size(); ++dim) {
    std::vector<Block> grown;
    for (const auto& block : blocks) {
      for (const auto& run : overlap.runs[dim]) {
        Block next = block;
        next.from += run.from * from_strides[dim];
        next.to += run.to * to_strides[dim];
        next.sizes.push_back(run.length);
        next.from_strides.push_back(from_strides[dim]);
        next.to_strides.push_back(to_strides[dim]);
        grown.push_back(std::move(next));
      }
    }
    blocks = std::move(grown);
  }
  for (auto& block : blocks) {
    merge_dims(block);
    numel_ += block.numel();
    // Merges a block that continues the last one on both sides.
    if (!blocks_.empty() && block.sizes.size() == 1 && blocks_.back().sizes.size() == 1) {
      Block& last = blocks_.back();
      const bool dense = last.from_strides[0] == 1 && last.to_strides[0] == 1 &&
                         block.from_strides[0] == 1 && block.to_strides[0] == 1;
      if (dense && last.from + last.sizes[0] == block.from && last.to + last.sizes[0] == block.to) {
        last.sizes[0] += block.sizes[0];
        continue;
      }
    }
    blocks_.push_back(std::move(block));
  }
}

bool BlockCopy::is_identity(int64_t numel) const {
  if (numel == 0) return blocks_.empty();
  return blocks_.size() == 1 && blocks_[0].from == 0 && blocks_[0].to == 0 &&
         blocks_[0].sizes.size() == 1 && blocks_[0].sizes[0] == numel &&
         (numel == 1 || (blocks_[0].from_strides[0] == 1 && blocks_[0].to_strides[0] == 1));
}

bool BlockCopy::fills_in_order() const {
  int64_t at = 0;
  for (const auto& block : blocks_) {
    if (block.to != at || !is_dense_in_destination(block)) return false;
    at += block.numel();
  }
  return true;
}

void BlockCopy::run_stretch(const at::Tensor& from, int64_t begin, int64_t count, char* to) const {
  const auto bytes = static_cast<int64_t>(from.element_size());
  const char* source = static_cast<const char*>(from.const_data_ptr());
  for (const auto& block : blocks_) {
    const int64_t first = std::max(begin, block.to);
    const int64_t last = std::min(begin + count, block.to + block.numel());
    if (first >= last) continue;
    copy_stretch(block, 0, source + block.from * bytes, to + (first - begin) * bytes, bytes,
                 first - block.to, last - block.to);
  }
}

void BlockCopy::run(const at::Tensor& from, at::Tensor& to) const {
  if (blocks_.empty() || from.is_meta()) return;
  if (from.is_cpu()) {
    run_on_cpu(static_cast<const char*>(from.const_data_ptr()),
               static_cast<char*>(to.mutable_data_ptr()), from.element_size());
    return;
  }
  for (const auto& block : blocks_) {
    to.as_strided(block.sizes, block.to_strides, to.storage_offset() + block.to)
        .copy_(
            from.as_strided(block.sizes, block.from_strides, from.storage_offset() + block.from));
  }
}

void BlockCopy::run_on_cpu(const char* from, char* to, int64_t element_bytes) const {
  for (const auto& block : blocks_) copy_block(block, from, to, element_bytes);
}

}  // namespace tessera::exec
