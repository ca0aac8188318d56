#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

/// Attention by all_to_all: shards of rows become shards of heads. Each rank then has the whole
/// sequence for some of the heads, and attention needs no communication.
namespace tessera::parallel {

struct AttentionTensors {
  at::Tensor query, key, value;
};

/// The tensors with `axes` moved from rows to heads, innermost there. Heads of keys that do not
/// divide as those of queries do are repeated, as few times as makes them fit: with 8 heads of
/// queries and 2 of keys on 4 ranks, each head of keys goes to two ranks. Differentiable.
AttentionTensors shard_heads(const AttentionTensors& tensors, const std::vector<int>& axes);

}  // namespace tessera::parallel
