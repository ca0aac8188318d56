#include "tessera/dtensor/factories.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <c10/core/DefaultDtype.h>

#include <cmath>

#include "tessera/base/errors.h"
#include "tessera/dtensor/parts/held_indexes.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"

namespace tessera {
namespace {

c10::Device device_of(const DeviceMesh& mesh) { return c10::Device(mesh.device()); }

/// The sharding of a new tensor, after the checks common to all factories.
Sharding place(std::string_view function, at::IntArrayRef shape, const DeviceMesh& mesh,
               Placements placements, at::ScalarType dtype, const at::TensorOptions& options) {
  require(mesh.defined(), function, " needs a mesh");
  require(!options.has_layout() || options.layout() == at::kStrided, function,
          " makes strided tensors only");
  require(!options.has_device() || options.device().type() == device_of(mesh).type(), function,
          " on ", options.device().str(), " but the mesh is on ", mesh.device());
  if (placements.empty()) placements.resize(static_cast<size_t>(mesh.ndim()));
  for (const auto& p : placements) {
    require(!p.is_partial(), function, " placed ", placements_text(placements),
            ": a value cannot be un-reduced; a Partial is what an op leaves behind");
  }
  return Sharding(mesh, std::move(placements), shape.vec(), {.dtype = static_cast<DType>(dtype)});
}

at::ScalarType dtype_or_default(const at::TensorOptions& options) {
  return options.has_dtype() ? c10::typeMetaToScalarType(options.dtype())
                             : c10::get_default_dtype_as_scalartype();
}

at::TensorOptions local_options(const Sharding& as) {
  return at::TensorOptions(device_of(as.mesh())).dtype(static_cast<at::ScalarType>(as.dtype()));
}

at::Tensor finish(at::Tensor local, const Sharding& as, const at::TensorOptions& options) {
  at::Tensor out = dtensor::wrap(std::move(local), as);
  if (options.requires_grad()) out.set_requires_grad(true);
  return out;
}

at::Tensor empty_part(const Sharding& as) {
  return at::empty(at::IntArrayRef(as.local_shape().data(), as.local_shape().size()),
                   local_options(as));
}

/// The global indexes that this rank holds along a dim.
at::Tensor indexes_of(const Sharding& as, int dim) {
  return dtensor::held_indexes(as, dim, device_of(as.mesh()));
}

}  // namespace

at::Tensor empty(at::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
                 const at::TensorOptions& options) {
  const Sharding as = place("empty", shape, mesh, placements, dtype_or_default(options), options);
  return finish(empty_part(as), as, options);
}

at::Tensor full(at::IntArrayRef shape, const at::Scalar& value, const DeviceMesh& mesh,
                const Placements& placements, const at::TensorOptions& options) {
  at::ScalarType dtype = dtype_or_default(options);
  if (!options.has_dtype() && !value.isFloatingPoint()) {
    dtype = value.isComplex() ? c10::toComplexType(dtype) : value.type();
  }
  const Sharding as = place("full", shape, mesh, placements, dtype, options);
  return finish(empty_part(as).fill_(value), as, options);
}

at::Tensor zeros(at::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
                 const at::TensorOptions& options) {
  const Sharding as = place("zeros", shape, mesh, placements, dtype_or_default(options), options);
  return finish(empty_part(as).zero_(), as, options);
}

at::Tensor ones(at::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
                const at::TensorOptions& options) {
  const Sharding as = place("ones", shape, mesh, placements, dtype_or_default(options), options);
  return finish(empty_part(as).fill_(1), as, options);
}

at::Tensor rand(at::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
                const at::TensorOptions& options) {
  const Sharding as = place("rand", shape, mesh, placements, dtype_or_default(options), options);
  at::Tensor out = dtensor::wrap(empty_part(as), as).uniform_(0, 1);
  return out.requires_grad_(options.requires_grad());
}

at::Tensor randn(at::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements,
                 const at::TensorOptions& options) {
  const Sharding as = place("randn", shape, mesh, placements, dtype_or_default(options), options);
  at::Tensor out = dtensor::wrap(empty_part(as), as).normal_(0, 1);
  return out.requires_grad_(options.requires_grad());
}

at::Tensor arange(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                  const DeviceMesh& mesh, const Placements& placements,
                  const at::TensorOptions& options) {
  const bool whole = start.isIntegral(false) && end.isIntegral(false) && step.isIntegral(false);
  require(step.toDouble() != 0 && (end.toDouble() - start.toDouble()) * step.toDouble() >= 0,
          "arange from ", start.toDouble(), " to ", end.toDouble(), " never gets there with step ",
          step.toDouble());
  int64_t count = 0;
  if (whole) {
    const int64_t by = step.toLong();
    count = (end.toLong() - start.toLong() + by - (by > 0 ? 1 : -1)) / by;
  } else {
    count = static_cast<int64_t>(std::ceil((end.toDouble() - start.toDouble()) / step.toDouble()));
  }
  const at::ScalarType dtype =
      whole && !options.has_dtype() ? at::kLong : dtype_or_default(options);
  const Sharding as = place("arange", {count}, mesh, placements, dtype, options);
  const at::Tensor index = indexes_of(as, 0);
  const at::Tensor values =
      whole ? index.mul(step).add_(start) : index.to(at::kDouble).mul_(step).add_(start);
  return finish(values.to(dtype), as, options);
}

at::Tensor arange(const at::Scalar& end, const DeviceMesh& mesh, const Placements& placements,
                  const at::TensorOptions& options) {
  return arange(end.isIntegral(false) ? at::Scalar(0) : at::Scalar(0.0), end, 1, mesh, placements,
                options);
}

at::Tensor eye(int64_t rows, int64_t columns, const DeviceMesh& mesh, const Placements& placements,
               const at::TensorOptions& options) {
  const Sharding as =
      place("eye", {rows, columns}, mesh, placements, dtype_or_default(options), options);
  const at::Tensor diagonal = indexes_of(as, 0).unsqueeze(1).eq(indexes_of(as, 1).unsqueeze(0));
  return finish(diagonal.to(static_cast<at::ScalarType>(as.dtype())), as, options);
}

at::Tensor eye(int64_t n, const DeviceMesh& mesh, const Placements& placements,
               const at::TensorOptions& options) {
  return eye(n, n, mesh, placements, options);
}

}  // namespace tessera
