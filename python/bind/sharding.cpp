#include "bind/bind.h"
#include "tessera/sharding/boxes.h"
#include "tessera/sharding/mesh_order.h"

namespace tessera::python {
namespace {

bool answers(const py::handle& object, const char* question) {
  return py::hasattr(object, question) && object.attr(question)().cast<bool>();
}

/// PyTorch's own placement objects, recognised by their methods rather than by their class: its
/// module is not imported for those who do not use it.
Placement from_torch(const py::handle& object) {
  const std::string type = py::str(py::type::handle_of(object).attr("__name__"));
  if (type == "_StridedShard") {
    return StridedShard(object.attr("dim").cast<int>(),
                        object.attr("split_factor").cast<int64_t>());
  }
  if (answers(object, "is_shard")) return Shard(object.attr("dim").cast<int>());
  if (answers(object, "is_replicate")) return Replicate();
  if (answers(object, "is_partial")) {
    return Partial(reduce_op_from_name(object.attr("reduce_op").cast<std::string>()));
  }
  throw py::type_error("not a placement: " + std::string(py::repr(object)) +
                       "; expected Shard(dim), Replicate(), Partial(op) or text like \"S0\"");
}

/// Shard(0) is PyTorch's Shard(0) too, for programs that take some names from there. Only for
/// comparing: their hashes differ, so a set or dict holds one kind or the other.
py::object equals_torchs(const Placement& p, const py::object& other) {
  if (!py::hasattr(other, "is_replicate")) {
    return py::reinterpret_borrow<py::object>(Py_NotImplemented);
  }
  try {
    return py::bool_(p == from_torch(other));
  } catch (const InvalidArgument&) {  // a reduction that only PyTorch knows
    return py::bool_(false);
  }
}

std::string repr(const Placement& p) {
  switch (p.kind()) {
    case Placement::Kind::replicate:
      return "Replicate()";
    case Placement::Kind::shard:
      return join_text("Shard(", p.dim(), ")");
    case Placement::Kind::strided:
      return join_text("StridedShard(", p.dim(), ", ", p.split(), ")");
    case Placement::Kind::ragged:
      return join_text("RaggedShard(", p.dim(), ", [", list_text(p.sizes()), "])");
    case Placement::Kind::partial:
      return join_text("Partial('", reduce_op_name(p.reduce_op()), "')");
  }
  return p.to_text();
}

std::string kind_name(const Placement& p) {
  switch (p.kind()) {
    case Placement::Kind::replicate:
      return "replicate";
    case Placement::Kind::shard:
      return "shard";
    case Placement::Kind::strided:
      return "strided";
    case Placement::Kind::ragged:
      return "ragged";
    case Placement::Kind::partial:
      return "partial";
  }
  return "";
}

void bind_placement(py::module_& m) {
  py::class_<Placement>(m, "Placement", "What one mesh axis does to a tensor.")
      .def_static("parse", &Placement::parse, py::arg("text"))
      .def_property_readonly("kind", kind_name)
      .def_property_readonly("dim",
                             [](const Placement& p) {
                               if (!p.is_sharded()) {
                                 throw py::attribute_error(repr(p) + " has no dim");
                               }
                               return p.dim();
                             })
      .def_property_readonly("split_factor", &Placement::split)
      .def_property_readonly("sizes", [](const Placement& p) { return copy_of(p.sizes()); })
      .def_property_readonly("reduce_op",
                             [](const Placement& p) {
                               if (!p.is_partial()) {
                                 throw py::attribute_error(repr(p) + " has no reduce_op");
                               }
                               return std::string(reduce_op_name(p.reduce_op()));
                             })
      .def(
          "is_shard",
          [](const Placement& p, const std::optional<int>& dim) {
            return p.is_sharded() && (!dim || p.dim() == *dim);
          },
          py::arg("dim") = py::none())
      .def("is_replicate", &Placement::is_replicate)
      .def(
          "is_partial",
          [](const Placement& p, const std::optional<std::string>& op) {
            return p.is_partial() && (!op || reduce_op_name(p.reduce_op()) == *op);
          },
          py::arg("reduce_op") = py::none())
      .def("__str__", &Placement::to_text)
      .def("__repr__", repr)
      .def(
          "__eq__", [](const Placement& a, const Placement& b) { return a == b; },
          py::is_operator())
      .def("__eq__", equals_torchs, py::is_operator())
      .def("__hash__", &Placement::hash);
  m.def("shard", &Shard, py::arg("dim"));
  m.def("strided_shard", &StridedShard, py::arg("dim"), py::arg("split_factor"));
  m.def("ragged_shard", &RaggedShard, py::arg("dim"), py::arg("sizes"));
  m.def("replicate", &Replicate);
  m.def(
      "partial", [](const std::string& op) { return Partial(reduce_op_from_name(op)); },
      py::arg("reduce_op") = "sum");
}

DType dtype_from(const py::object& dtype) {
  if (py::isinstance<py::str>(dtype)) {
    const auto name = dtype.cast<std::string>();
    const auto known = dtype_from_name(name);
    require(known.has_value(), "no element type is called \"", name, "\"");
    return *known;
  }
  return static_cast<DType>(dtype.cast<at::ScalarType>());
}

/// [(begin, end), ...] by dim: what a rank of the mesh holds, in the order of its local tensor.
py::list boxes_of(const Sharding& sharding, std::optional<int> rank) {
  const auto at = rank ? rank : sharding.mesh().my_rank();
  require(at.has_value(), "boxes of ", sharding, ": this mesh has no rank of its own; name one");
  const auto coordinate = sharding.mesh().coordinate_of(*at);
  require(coordinate.has_value(), "rank ", *at, " is not on mesh ", sharding.mesh());
  py::list out;
  for (const Box& box : held_boxes(sharding, *coordinate)) {
    out.append(py::make_tuple(tuple_of(std::span<const int64_t>(box.begin)),
                              tuple_of(std::span<const int64_t>(box.end))));
  }
  return out;
}

/// The names of the axes that shard a dim, outermost first.
py::tuple axes_of_dim(const Sharding& sharding, int dim) {
  const auto axes = sharding.axes_of_dim(dim < 0 ? dim + sharding.ndim() : dim);
  py::tuple out(axes.size());
  for (size_t i = 0; i < axes.size(); ++i) out[i] = sharding.mesh().axis_name(axes[i]);
  return out;
}

}  // namespace

Placement to_placement(py::handle object) {
  if (py::isinstance<Placement>(object)) return object.cast<Placement>();
  if (py::isinstance<py::str>(object)) return Placement::parse(object.cast<std::string>());
  return from_torch(object);
}

PlacementList to_placements(py::handle object) {
  if (py::isinstance<py::str>(object)) return {parse_placements(object.cast<std::string>())};
  if (!py::isinstance<py::sequence>(object)) return {{to_placement(object)}};
  PlacementList out;
  for (const auto& item : py::reinterpret_borrow<py::sequence>(object)) {
    out.list.push_back(to_placement(item));
  }
  return out;
}

constexpr const char* kShardingDoc = R"(Which rank holds which elements of a global tensor.

    >>> s = tessera.Sharding.parse("dp=2,tp=4 : S0,R : 8x16")
    >>> s.placements, s.shape, s.local_shape
    ((Shard(0), Replicate()), (8, 16), (4, 16))

Placements are read in mesh order; where axes shard a dim in another order, they say so themselves.

    >>> t = tessera.Sharding.parse("dp=2,tp=2 : S0#1,S0#0 : 8x16")
    >>> t.axes_of_dim(0), t.placements
    (('tp', 'dp'), (StridedShard(0, 2), Shard(0)))
    >>> s.boxes(rank=5)
    [((4, 0), (8, 16))])";

void bind_sharding(py::module_& m) {
  bind_placement(m);
  py::class_<Sharding>(m, "Sharding", kShardingDoc)
      .def(py::init([](const DeviceMesh& mesh, PlacementList placements,
                       const std::vector<int64_t>& shape, const py::object& dtype,
                       const std::vector<int64_t>& stride, const std::vector<int>& order) {
             ShardingOptions options{.stride = stride, .order = order};
             if (!dtype.is_none()) options.dtype = dtype_from(dtype);
             return Sharding(mesh, std::move(placements.list), shape, options);
           }),
           py::arg("mesh"), py::arg("placements"), py::arg("shape"), py::kw_only(),
           py::arg("dtype") = py::none(), py::arg("stride") = std::vector<int64_t>(),
           py::arg("order") = std::vector<int>())
      .def_static("parse", &Sharding::parse, py::arg("text"))
      .def_property_readonly("mesh", &Sharding::mesh)
      .def_property_readonly("placements",
                             [](const Sharding& s) {
                               const auto list = placements_in_mesh_order(s);
                               return tuple_of(std::span<const Placement>(list));
                             })
      .def_property_readonly("shape", [](const Sharding& s) { return tuple_of(s.shape()); })
      .def_property_readonly("stride", [](const Sharding& s) { return tuple_of(s.stride()); })
      .def_property_readonly(
          "dtype", [](const Sharding& s) { return static_cast<at::ScalarType>(s.dtype()); })
      .def_property_readonly("local_shape",
                             [](const Sharding& s) { return tuple_of(s.local_shape()); })
      .def_property_readonly("local_offset",
                             [](const Sharding& s) { return tuple_of(s.local_offset()); })
      .def("axes_of_dim", axes_of_dim, py::arg("dim"))
      .def("boxes", boxes_of, py::arg("rank") = py::none())
      .def(
          "with_placements",
          [](const Sharding& s, PlacementList placements, const std::vector<int>& order) {
            return s.with_placements(std::move(placements.list), order);
          },
          py::arg("placements"), py::arg("order") = std::vector<int>())
      .def(
          "for_tensor",
          [](const Sharding& s, const std::vector<int64_t>& shape, const py::object& dtype) {
            const Sharding of = s.with_shape(shape);
            return dtype.is_none() ? of : of.with_dtype(dtype_from(dtype));
          },
          py::arg("shape"), py::arg("dtype") = py::none())
      .def("replicated", &Sharding::replicated)
      .def("__str__", &Sharding::to_text)
      .def("__repr__", [](const Sharding& s) { return join_text("Sharding('", s, "')"); })
      .def(
          "__eq__", [](const Sharding& a, const Sharding& b) { return a == b; }, py::is_operator())
      .def("__hash__", &Sharding::hash);
}

}  // namespace tessera::python
