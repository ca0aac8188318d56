#include "tessera/dtensor/ops/held_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "tessera/sharding/local_shape.h"

namespace tessera::dtensor {

at::Tensor local_rows(const at::Tensor& index, const Sharding& table, int64_t dim,
                      int64_t elsewhere) {
  at::Tensor out = at::zeros_like(index).fill_(elsewhere);
  int64_t place = 0;
  for (const Interval& part :
       held_intervals(table, static_cast<int>(dim), *table.mesh().my_coordinate())) {
    const at::Tensor here = at::logical_and(index.ge(part.begin), index.lt(part.end));
    out = at::where(here, index - (part.begin - place), out);
    place += part.size();
  }
  return out;
}

}  // namespace tessera::dtensor
