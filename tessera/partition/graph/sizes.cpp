#include "tessera/partition/graph/sizes.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/errors.h"
#include "tessera/base/iota_vector.h"

namespace tessera::partition {

using program::Expression;
using program::Size;
using program::TensorMeta;

int64_t hint_of(const Size& size) {
  require(size.hint().has_value(), "the size ", size.to_text(),
          " has no hint: export the program with example inputs");
  return *size.hint();
}

std::vector<int64_t> hints_of(std::span<const Size> sizes) {
  std::vector<int64_t> out;
  for (const Size& size : sizes) out.push_back(hint_of(size));
  return out;
}

namespace {

Expression expression_of(const Size& size) {
  return size.is_number() ? Expression::integer(size.number()) : *size.expression();
}

}  // namespace

Size multiply(const Size& a, const Size& b) {
  if (a.is_number() && b.is_number()) return a.number() * b.number();
  if (a == Size(1)) return b;
  if (b == Size(1)) return a;
  if (a == Size(0) || b == Size(0)) return 0;
  return {Expression::call("Mul", {expression_of(a), expression_of(b)}), hint_of(a) * hint_of(b)};
}

Share share_of(int64_t part, int64_t whole) {
  if (whole == 0 || part == whole) return {};
  const int64_t divisor = std::gcd(part, whole);
  return {part / divisor, whole / divisor};
}

Size part_of(const Size& whole, int64_t part) {
  if (whole.is_number() || part == 0) return part;
  const Share share = share_of(part, hint_of(whole));
  if (share.is_one()) return whole;
  const Size unit(program::divide(*whole.expression(), share.denominator),
                  hint_of(whole) / share.denominator);
  return multiply(share.numerator, unit);
}

std::vector<Size> dense_strides(std::span<const Size> sizes) {
  std::vector<Size> out(sizes.size(), Size(1));
  for (size_t d = sizes.size(); d-- > 1;) {
    const bool empty = sizes[d] == Size(0);  // as torch: an empty dim does not make strides zero
    out[d - 1] = empty ? out[d] : multiply(sizes[d], out[d]);
  }
  return out;
}

bool is_sharded(const Sharding& sharding) {
  if (!sharding.defined()) return false;
  for (int axis = 0; axis < sharding.mesh().ndim(); ++axis) {
    if (sharding.placement(axis).is_sharded() && sharding.mesh().size(axis) > 1) return true;
  }
  return false;
}

namespace {

/// Parts of a symbolic size must be equal: what rank 0 computes with is true on all.
void check_even(const TensorMeta& global, const Sharding& sharding, size_t dim) {
  if (global.sizes[dim].is_number()) return;
  int64_t parts = 1;
  for (const int axis : sharding.axes_of_dim(static_cast<int>(dim))) {
    parts *= sharding.mesh().size(axis);
  }
  if (sharding.local_shape()[dim] * parts == sharding.shape()[dim]) return;
  throw NotSupported(
      join_text(sharding, " shards dim ", dim, ", of size ", global.sizes[dim].to_text(),
                ", unevenly: a size that is known only when the program runs is sharded "
                "into equal parts or not at all"));
}

}  // namespace

TensorMeta local_meta(const TensorMeta& global, const Sharding& sharding) {
  TensorMeta out = global;
  const auto shape = sharding.local_shape();
  ensure(shape.size() == global.sizes.size(), "a value has another rank than its sharding");
  if (std::ranges::equal(shape, sharding.shape()) && !is_sharded(sharding)) return out;
  if (global.strides.size() != global.sizes.size()) {  // of sparse layouts
    throw NotSupported(join_text("a value that has no strides cannot be sharded as ", sharding));
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    check_even(global, sharding, d);
    out.sizes[d] = part_of(global.sizes[d], shape[d]);
  }
  // Dims from the innermost out, by the file's strides; an expanded dim keeps its stride of 0.
  std::vector<size_t> dims = iota_vector(shape.size());
  const auto strides = hints_of(global.strides);
  std::ranges::stable_sort(dims, [&](size_t a, size_t b) {
    return strides[a] != strides[b] ? strides[a] < strides[b] : a > b;
  });
  Size next = 1;
  for (const size_t d : dims) {
    if (strides[d] == 0) continue;
    out.strides[d] = next;
    if (!(out.sizes[d] == Size(0))) next = multiply(next, out.sizes[d]);
  }
  out.storage_offset = 0;
  return out;
}

}  // namespace tessera::partition
