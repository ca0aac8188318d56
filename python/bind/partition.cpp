#include "tessera/partition/partition.h"

#include "bind/bind.h"

namespace tessera::python {
namespace {

partition::PartitionedProgram partitioned(const std::string& file, const std::string& mesh,
                                          const std::string& plan) {
  // The mesh without its world: what is chosen depends on no live ranks.
  return partition::partition(file, DeviceMesh::parse(mesh), partition::Plan::parse(plan, "plan"));
}

void partition_for_rank(const std::string& file, const std::string& mesh, const std::string& plan,
                        int rank, const std::string& to) {
  partitioned(file, mesh, plan).save_rank(rank, to);
}

void shard_program(const std::string& file, const std::string& mesh, const std::string& plan,
                   const std::string& directory, bool overwrite, bool single_file) {
  partitioned(file, mesh, plan)
      .save(directory, {.overwrite = overwrite, .single_file = single_file});
}

}  // namespace

void bind_partition(py::module_& m) {
  m.def("partition_for_rank", partition_for_rank, py::arg("file"), py::arg("mesh"), py::arg("plan"),
        py::arg("rank"), py::arg("to"), NoGil());
  m.def("shard_program", shard_program, py::arg("file"), py::arg("mesh"), py::arg("plan"),
        py::arg("directory"), py::arg("overwrite"), py::arg("single_file"), NoGil());
}

}  // namespace tessera::python
