#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>
#include <torch/csrc/autograd/python_variable.h>

#include "bind/bind.h"
#include "tessera/base/progress_bar.h"
#include "tessera/checkpoint/agree.h"
#include "tessera/checkpoint/async_save.h"
#include "tessera/checkpoint/chunks.h"
#include "tessera/checkpoint/load.h"
#include "tessera/checkpoint/save.h"
#include "tessera/checkpoint/save_safetensors.h"
#include "tessera/checkpoint/steps.h"

namespace tessera::python {
namespace {

constexpr int kMaxDepth = 64;

using SparePath = std::optional<std::filesystem::path>;

/// An int, or a scalar of numpy, which is of no class of Python's.
bool is_integer(py::handle object) {
  return py::isinstance<py::int_>(object) ||
         py::isinstance(object, py::module_::import("numbers").attr("Integral"));
}

/// A scalar of numpy, which a program that has one has imported.
bool is_numpy_scalar(py::handle object) {
  const py::dict modules = py::module_::import("sys").attr("modules");
  return modules.contains("numpy") && py::isinstance(object, modules["numpy"].attr("generic"));
}

std::string to_utf8(py::handle text, const std::string& name) {
  try {
    return text.cast<std::string>();
  } catch (const std::exception&) {
    PyErr_Clear();
    throw InvalidArgument(
        join_text(name, ": a text with a half of a surrogate pair, which UTF-8 does not have"));
  }
}

PlainValue to_plain(py::handle object, const std::string& name, int depth = 0) {
  require(depth < kMaxDepth, name, ": lists and dicts nested deeper than ", kMaxDepth);
  if (object.is_none()) return {};
  if (py::isinstance<py::bool_>(object)) return object.cast<bool>();
  if (is_integer(object)) {
    try {
      return py::int_(py::reinterpret_borrow<py::object>(object)).cast<int64_t>();
    } catch (const py::cast_error&) {
      throw InvalidArgument(join_text(name, ": a whole number of more than 64 bits"));
    }
  }
  if (py::isinstance<py::float_>(object)) return object.cast<double>();
  if (py::isinstance<py::str>(object)) return to_utf8(object, name);
  if (py::isinstance<py::bytes>(object)) return PlainValue::bytes(object.cast<std::string>());
  const bool is_tuple = py::isinstance<py::tuple>(object);
  if (is_tuple || py::isinstance<py::list>(object)) {
    std::vector<PlainValue> items;
    for (const py::handle item : py::reinterpret_borrow<py::sequence>(object)) {
      items.push_back(to_plain(item, name, depth + 1));
    }
    return is_tuple ? PlainValue::tuple(std::move(items)) : PlainValue::list(std::move(items));
  }
  if (py::isinstance<py::dict>(object)) {
    std::vector<std::pair<PlainValue, PlainValue>> members;
    for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(object)) {
      PlainValue plain_key = to_plain(key, name, depth + 1);
      members.emplace_back(std::move(plain_key), to_plain(value, name, depth + 1));
    }
    return PlainValue::dict(std::move(members));
  }
  if (is_numpy_scalar(object)) {  // np.float32, np.bool_
    const py::object item = object.attr("item")();
    if (!is_numpy_scalar(item)) return to_plain(item, name, depth + 1);
  }
  if (THPVariable_Check(object.ptr())) {
    throw NotSupported(join_text(name,
                                 " is a tuple that holds a tensor, which has no name there; "
                                 "make it a list or a dict"));
  }
  throw NotSupported(join_text(
      name, " is a ", py::str(py::type::handle_of(object).attr("__name__")).cast<std::string>(),
      "; a checkpoint holds tensors, numbers, text, bytes, and lists, tuples and dicts of them"));
}

struct ToPython {
  py::object operator()(std::monostate) const { return py::none(); }
  py::object operator()(bool value) const { return py::bool_(value); }
  py::object operator()(int64_t value) const { return py::int_(value); }
  py::object operator()(double value) const { return py::float_(value); }
  py::object operator()(const std::string& value) const { return py::str(value); }
  py::object operator()(const PlainValue::Bytes& value) const { return py::bytes(value.data); }
  py::object operator()(const PlainValue::Sequence& value) const {
    py::list out;
    for (const auto& item : value.items) out.append(std::visit(*this, item.data()));
    if (value.is_tuple) return py::tuple(out);
    return out;
  }
  py::object operator()(const std::shared_ptr<const PlainValue::Dict>& value) const {
    py::dict out;
    for (const auto& [key, member] : value->members) {
      out[std::visit(*this, key.data())] = std::visit(*this, member.data());
    }
    return out;
  }
};

State to_state(const py::dict& given) {
  State state;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    if (THPVariable_Check(value.ptr())) {
      state.emplace(name, THPVariable_Unpack(value.ptr()));
    } else {
      state.emplace(name, to_plain(value, name));
    }
  }
  return state;
}

/// Nested values of Python by their names, and the path of each name.
struct Flattened {
  State state;
  std::map<std::string, dcp::Path> paths;
};

/// `flatten` gives a dict of values and one of paths. An error of it, or a value that no checkpoint
/// holds, is an error of all ranks: the others would wait for this one in what follows.
Flattened flatten_on_all_ranks(const py::object& flatten, comm::RankWorld& world) {
  Flattened out;
  const py::gil_scoped_release no_gil;
  checkpoint::on_all_ranks(world, [&] {
    const py::gil_scoped_acquire gil;
    const py::tuple given = flatten();
    out.state = to_state(given[0]);
    out.paths = given[1].cast<std::map<std::string, dcp::Path>>();
  });
  return out;
}

py::list boxes_list(const std::vector<Box>& boxes) {
  py::list out;
  for (const Box& box : boxes) {
    out.append(py::make_tuple(tuple_of<int64_t>(box.begin), tuple_of<int64_t>(box.end)));
  }
  return out;
}

/// A bar on the terminal of rank 0, until the function is destroyed. It needs no lock of Python's:
/// a save in the background draws too.
std::function<void(uint64_t, uint64_t)> bar_of(const char* what, const comm::RankWorld& world) {
  if (world.rank() != 0) return {};
  const auto bar = std::make_shared<ProgressBar>(what);
  return [bar](uint64_t bytes, uint64_t total) { bar->show(bytes, total); };
}

SaveOptions save_options(const std::map<std::string, dcp::Path>& paths,
                         std::shared_ptr<comm::RankWorld> world, const SparePath& spare) {
  auto bar = bar_of("saving", *world);
  return {.world = std::move(world),
          .paths = paths,
          .spare = spare.value_or(std::filesystem::path()),
          .on_progress = std::move(bar)};
}

void save_state(const py::object& flatten, const std::filesystem::path& directory,
                const SparePath& spare, std::shared_ptr<comm::RankWorld> world) {
  const auto [state, paths] = flatten_on_all_ranks(flatten, *world);
  const SaveOptions options = save_options(paths, std::move(world), spare);
  const py::gil_scoped_release no_gil;
  save(state, directory, options);
}

void save_step_state(const py::object& flatten, const std::filesystem::path& root, int64_t step,
                     int keep, const SparePath& spare, std::shared_ptr<comm::RankWorld> world) {
  const auto [state, paths] = flatten_on_all_ranks(flatten, *world);
  const SaveStepOptions options = {.save = save_options(paths, std::move(world), spare),
                                   .keep = keep};
  const py::gil_scoped_release no_gil;
  save_step(state, root, step, options);
}

void bind_async_saver(py::module_& m) {
  py::class_<AsyncSaver, std::unique_ptr<AsyncSaver>>(m, "AsyncSaver")
      .def(py::init([](bool refuse_when_busy) {
        return std::make_unique<AsyncSaver>(AsyncSaver::Options{refuse_when_busy});
      }))
      .def("save",
           [](AsyncSaver& saver, const py::object& flatten, const std::filesystem::path& directory,
              const SparePath& spare, std::shared_ptr<comm::RankWorld> world) {
             const auto [state, paths] = flatten_on_all_ranks(flatten, *world);
             const SaveOptions options = save_options(paths, std::move(world), spare);
             const py::gil_scoped_release no_gil;
             saver.save(state, directory, options);
           })
      .def("wait", &AsyncSaver::wait, NoGil())
      .def("busy", &AsyncSaver::busy);
}

py::tuple load_state(const py::object& flatten, const std::filesystem::path& directory,
                     const LoadOptions& options) {
  State state = flatten_on_all_ranks(flatten, *options.world).state;
  LoadReport report;
  {
    const py::gil_scoped_release no_gil;
    report = load(state, directory, options);
  }
  py::dict values;
  for (const auto& [name, value] : state) {
    const auto* plain = std::get_if<PlainValue>(&value);
    if (plain != nullptr) values[py::str(name)] = std::visit(ToPython(), plain->data());
  }
  return py::make_tuple(report.missing, report.unexpected, values);
}

}  // namespace

void bind_checkpoint(py::module_& m) {
  m.def("write_items", [](const std::string& name, const at::Tensor& tensor) {
    return boxes_list(write_items(name, tensor));
  });
  m.def("chunk_list", [](const at::Tensor& tensor) { return boxes_list(chunk_list(tensor)); });
  m.def("tensor_shard", [](const at::Tensor& tensor, const std::vector<int64_t>& offset) {
    return tensor_shard(tensor, offset);
  });
  m.def("save_state", save_state);
  m.def("save_step", save_step_state);
  m.def("latest_step", [](const std::filesystem::path& root) { return latest_step(root); });
  m.def("step_path", [](const std::filesystem::path& root, int64_t step) {
    return step_path(root, step).string();
  });
  bind_async_saver(m);
  m.def("save_safetensors", [](const py::object& flatten, const std::filesystem::path& path,
                               uint64_t max_file_bytes, std::shared_ptr<comm::RankWorld> world) {
    const State state = flatten_on_all_ranks(flatten, *world).state;
    const py::gil_scoped_release no_gil;
    save_safetensors(state, path, {.world = std::move(world), .max_file_bytes = max_file_bytes});
  });
  m.def("load_state",
        [](const py::object& flatten, const std::filesystem::path& directory, bool allow_missing,
           bool allow_unexpected, std::vector<std::pair<std::string, std::string>> renames,
           bool cast, bool verify, std::shared_ptr<comm::RankWorld> world) {
          auto bar = bar_of("loading", *world);
          return load_state(flatten, directory,
                            {.world = std::move(world),
                             .allow_missing = allow_missing,
                             .allow_unexpected = allow_unexpected,
                             .renames = std::move(renames),
                             .cast = cast,
                             .verify = verify,
                             .on_progress = std::move(bar)});
        });
}

}  // namespace tessera::python
