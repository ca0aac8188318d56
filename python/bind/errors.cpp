#include "bind/bind.h"

namespace tessera::python {
namespace {

// Never destroyed: an error may be translated while the interpreter ends.
struct Classes {
  py::object error, invalid, not_supported, peer, internal;
};
Classes& classes() {
  static auto* made = new Classes();
  return *made;
}

py::object make(py::module_& m, const char* name, const char* doc, const py::tuple& bases) {
  const std::string full = std::string("tessera.") + name;
  auto made = py::reinterpret_steal<py::object>(
      PyErr_NewExceptionWithDoc(full.c_str(), doc, bases.ptr(), nullptr));
  if (!made) throw py::error_already_set();
  m.attr(name) = made;
  return made;
}

void raise(const py::object& type, const Error& error) {
  // A message may quote bytes of a damaged file, which are no UTF-8.
  const std::string_view text = error.what();
  const auto decoded = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
  if (decoded) PyErr_SetObject(type.ptr(), decoded.ptr());
}

}  // namespace

void bind_errors(py::module_& m) {
  const auto builtin = [](PyObject* type) { return py::reinterpret_borrow<py::object>(type); };
  Classes& c = classes();
  c.error = make(m, "Error", "Any error of tessera.", py::make_tuple(builtin(PyExc_RuntimeError)));
  c.invalid = make(m, "InvalidArgument",
                   "The caller's mistake: what was asked, what was found, what to do.",
                   py::make_tuple(c.error, builtin(PyExc_ValueError)));
  c.not_supported = make(m, "NotSupported", "A sound request that cannot be served here.",
                         py::make_tuple(c.error, builtin(PyExc_NotImplementedError)));
  c.peer = make(m, "PeerError", "Another rank or a link failed.", py::make_tuple(c.error));
  c.internal = make(m, "InternalError", "A bug in tessera.", py::make_tuple(c.error));
  py::register_exception_translator([](std::exception_ptr p) {
    if (!p) return;
    try {
      std::rethrow_exception(p);
    } catch (const InvalidArgument& e) {
      raise(classes().invalid, e);
    } catch (const NotSupported& e) {
      raise(classes().not_supported, e);
    } catch (const PeerError& e) {
      raise(classes().peer, e);
    } catch (const InternalError& e) {
      raise(classes().internal, e);
    } catch (const Error& e) {
      raise(classes().error, e);
    }
  });
}

}  // namespace tessera::python
