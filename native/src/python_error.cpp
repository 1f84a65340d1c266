#include "python_error.h"

#include "error.h"

namespace cudnn_aot {
namespace {

namespace py = pybind11;

// A message may quote the name of a file, which may be no text.
py::object TextOf(const std::string& message) {
  auto size = static_cast<Py_ssize_t>(message.size());
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(message.data(), size, "backslashreplace"));
}

void Raise(const ErrorValue& error) {
  const char* name = ClassOf(error.code);
  if (name == nullptr) return PyErr_SetString(PyExc_RuntimeError, error.message.c_str());
  py::object type = py::module_::import("cudnn_aot.errors").attr(name);
  if (error.code != Code::kRefused) {
    return PyErr_SetObject(type.ptr(), TextOf(error.message).ptr());
  }
  py::object operand = py::none();
  if (error.operand != Refusal::kNoOperand) operand = py::int_(error.operand);
  py::object value = type(error.message, error.rule, operand);
  PyErr_SetObject(type.ptr(), value.ptr());
}

}  // namespace

void SetPythonError(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PythonErrorSet&) {
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (const TableError& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const py::builtin_exception& e) {
    e.set_error();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (...) {
    Raise(ErrorOf(error));
  }
}

}  // namespace cudnn_aot
