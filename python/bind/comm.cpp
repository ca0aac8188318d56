#include <pybind11/chrono.h>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "bind/bind.h"
#include "tessera/collective/deadline.h"
#include "tessera/collective/may_block.h"
#include "tessera/comm/adopt_mesh.h"
#include "tessera/comm/environment_settings.h"
#include "tessera/comm/failure.h"
#include "tessera/comm/fake.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/rank_generator.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/comm/world.h"
#include "tessera/comm/world_end.h"
#include "tessera/observe/checked.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tessera/observe/trace.h"

namespace tessera::python {
namespace {

using comm::CommEvent;
using comm::RankWorld;
using comm::Recorder;
using WorldPtr = std::shared_ptr<RankWorld>;

/// A world may end after the interpreter, where PyGILState_Check says yes on every thread.
bool holds_the_lock() { return Py_IsInitialized() != 0 && PyGILState_Check() != 0; }

void release_the_lock_while_ranks_wait() {
  comm::set_block_hooks(
      {.begin = []() -> void* { return holds_the_lock() ? PyEval_SaveThread() : nullptr; },
       .end = [](void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }});
}

const char* kind_name(RankWorld::Kind kind) {
  switch (kind) {
    case RankWorld::Kind::processes:
      return "processes";
    case RankWorld::Kind::threads:
      return "threads";
    case RankWorld::Kind::fake:
      return "fake";
    case RankWorld::Kind::external:
      return "external";
  }
  return "";
}

/// A world over the store of a process group that torch.distributed made. Groups go by name, so
/// that nothing here depends on how torch's own bindings hold them.
WorldPtr world_over_group(const std::string& group_name, int local_rank) {
  const auto group = c10d::resolve_process_group(group_name);
  comm::ProcessWorldOptions options;
  options.rank = group->getRank();
  options.size = group->getSize();
  options.local_rank = local_rank;
  options.store = group->getStore();
  require(options.store.defined() || options.size == 1, "process group ", group_name,
          " keeps no store through which the ranks could meet");
  const comm::Environment environment = comm::process_environment();
  options.timeout = comm::timeout_from(environment);
  options.secret = environment("TESSERA_JOB_SECRET").value_or("");
  auto world = comm::make_process_world(std::move(options));
  if (comm::checks_collectives(environment)) comm::set_checked(*world, true);
  return world;
}

std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups_of(
    const std::vector<std::string>& names) {
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups;
  for (const auto& name : names) groups.push_back(c10d::resolve_process_group(name));
  return groups;
}

DeviceMesh mesh_over_groups(const DeviceMesh& mesh, int my_rank, int world_size,
                            const std::vector<std::string>& group_names) {
  return comm::mesh_from_groups(mesh, my_rank, world_size, groups_of(group_names));
}

DeviceMesh adopt_mesh(const DeviceMesh& mesh, WorldPtr world,
                      const std::vector<std::string>& group_names) {
  return comm::adopt_mesh(mesh, std::move(world), groups_of(group_names));
}

/// Another group of such a mesh: my ranks along several axes, as plans that merge axes use them.
void adopt_group(const DeviceMesh& mesh, const std::vector<int>& axes,
                 const std::string& group_name) {
  RankWorld& world = comm::world_of(mesh);
  world.adopt(mesh.group(axes, world.rank()), c10d::resolve_process_group(group_name));
}

WorldPtr world_of(const DeviceMesh& mesh) { return comm::world_of(mesh).shared_from_this(); }

/// "all_gather" or nothing, "tp" or nothing.
int count(const Recorder& recorder, const std::optional<std::string>& op,
          const std::optional<std::string>& axis) {
  if (!op) return axis ? recorder.count_on(*axis) : recorder.count();
  const auto known = comm::op_of_name(*op);
  require(known.has_value(), "no collective is called \"", *op, "\"");
  return axis ? recorder.count(*known, *axis) : recorder.count(*known);
}

/// Entered and left as a context manager, on one thread.
struct WorldScope {
  WorldPtr world;
  std::vector<std::unique_ptr<comm::WorldGuard>> open{};
};

void bind_worlds(py::module_& m) {
  py::class_<RankWorld, WorldPtr>(m, "World",
                                  "The ranks of a program, and which of them this one is.")
      .def_property_readonly("rank", &RankWorld::rank)
      .def_property_readonly("size", &RankWorld::size)
      .def_property_readonly("kind", [](const RankWorld& w) { return kind_name(w.kind()); })
      .def_property_readonly("name", &RankWorld::name)
      .def("__repr__", [](const RankWorld& w) {
        return join_text("World(rank ", w.rank(), " of ", w.size(), ", ", kind_name(w.kind()), ")");
      });
  py::class_<WorldScope>(m, "WorldScope")
      .def(py::init([](WorldPtr world) { return WorldScope{std::move(world)}; }))
      .def("__enter__",
           [](WorldScope& self) {
             self.open.push_back(std::make_unique<comm::WorldGuard>(self.world));
             return self.world;
           })
      .def("__exit__", [](WorldScope& self, const py::args&) { self.open.pop_back(); });
  m.def("fake_world", &comm::fake_world, py::arg("rank"), py::arg("size"));
  m.def("current_world", &comm::current_world, NoGil());
  m.def("entered_world", &comm::entered_world);
  m.def("world_over_group", world_over_group, NoGil());
  m.def(
      "report_failure", [](const std::string& why) { comm::report_failure(why); }, NoGil());
  m.def(
      "close_links", [] { comm::close_links(); }, NoGil());
  m.def("set_process_world", &comm::set_process_world);
  m.def("close_process_world", &comm::close_process_world, NoGil());
  m.def("end_process_world", &comm::end_process_world, NoGil());
  m.def("mesh_over_groups", mesh_over_groups, NoGil());
  m.def("adopt_mesh", adopt_mesh, NoGil());
  m.def("adopt_group", adopt_group, NoGil());
  m.def("world_of", world_of);
  m.def(
      "group_name",
      [](const DeviceMesh& mesh, const std::string& axis) {
        return comm::group_of(mesh, axis)->name();
      },
      NoGil());
  m.def(
      "init_device_mesh",
      [](const std::string& device, const std::vector<int>& sizes,
         const std::vector<std::string>& names,
         WorldPtr world) { return comm::init_device_mesh(device, sizes, names, std::move(world)); },
      NoGil());
  m.def(
      "parse_device_mesh",
      [](const std::string& text, WorldPtr world) {
        return comm::init_device_mesh(text, std::move(world));
      },
      NoGil());
  m.def("rank_seed", &comm::manual_seed, py::arg("seed"));
  m.def("rank_generator", [](const at::Device& device) { return comm::default_generator(device); });
}

void bind_recorder(py::module_& m) {
  py::class_<CommEvent>(m, "CommEvent", "One collective as its caller saw it.")
      .def_property_readonly("op", [](const CommEvent& e) { return comm::op_name(e.op); })
      .def_readonly("site", &CommEvent::site)
      .def_readonly("axis", &CommEvent::axis)
      .def_readonly("implicit", &CommEvent::implicit)
      .def_readonly("in_backward", &CommEvent::in_backward)
      .def_readonly("is_async", &CommEvent::async)
      .def_readonly("failed", &CommEvent::failed)
      .def_readonly("dtype", &CommEvent::dtype)
      .def_readonly("shapes_in", &CommEvent::shapes_in)
      .def_readonly("shapes_out", &CommEvent::shapes_out)
      .def_property_readonly("bytes", &CommEvent::bytes)
      .def_property_readonly(
          "seconds",
          [](const CommEvent& e) { return std::chrono::duration<double>(e.duration).count(); })
      .def_property_readonly(
          "exposed",
          [](const CommEvent& e) { return std::chrono::duration<double>(e.exposed).count(); })
      .def_property_readonly("ranks", [](const CommEvent& e) { return e.group->ranks; })
      .def("__str__", &CommEvent::to_text);
  py::class_<Recorder>(m, "Recorder")
      .def(py::init([](const RankWorld& world) { return std::make_unique<Recorder>(world); }))
      .def("stop", &Recorder::stop)
      .def("clear", &Recorder::clear)
      .def_property_readonly("rank", &Recorder::rank)
      .def_property_readonly("events", &Recorder::events)
      .def("count", count, py::arg("op") = py::none(), py::arg("axis") = py::none())
      .def_property_readonly("implicit", &Recorder::count_implicit)
      .def_property_readonly("bytes", &Recorder::bytes)
      .def_property_readonly(
          "exposed",
          [](const Recorder& r) { return std::chrono::duration<double>(r.exposed()).count(); })
      .def("__str__", &Recorder::to_text);
  m.def("expect_comm", [](const Recorder& recorder, const std::string& expected) {
    comm::require_comm(recorder, expected);
  });
  m.def("comm_difference", [](const Recorder& recorder, const std::string& expected) {
    return comm::expect_comm(recorder, expected);
  });
  m.def("trace_json",
        [](const std::vector<const Recorder*>& recorders) { return comm::trace_json(recorders); });
}

}  // namespace

void bind_comm(py::module_& m) {
  release_the_lock_while_ranks_wait();
  bind_worlds(m);
  bind_recorder(m);
}

}  // namespace tessera::python
