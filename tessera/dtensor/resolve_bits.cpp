#include "tessera/dtensor/resolve_bits.h"

namespace tessera::dtensor {

bool has_bit(const at::Tensor& view, ViewValue bit) {
  bool conjugated = false;
  bool negated = false;
  for (const ShardedMeta* meta = sharded_meta(view); meta != nullptr && meta->origin() != nullptr;
       meta = sharded_meta(meta->origin()->base)) {
    conjugated ^= meta->origin()->value == ViewValue::conjugate;
    negated ^= meta->origin()->value == ViewValue::negative;
  }
  if (view.is_complex()) return bit == ViewValue::conjugate ? conjugated : negated;
  // Of the real and imaginary parts, which alternate in memory, a conjugate changes the latter.
  const bool is_imaginary = conjugated && sharded_meta(view)->local().storage_offset() % 2 == 1;
  return bit == ViewValue::negative && negated != is_imaginary;
}

}  // namespace tessera::dtensor
