#include "python_error.h"

#include "error.h"

namespace cudnn_aot {
namespace {

namespace py = pybind11;

void Raise(const char* name, const char* message) {
  py::object type = py::module_::import("cudnn_aot.errors").attr(name);
  PyErr_SetString(type.ptr(), message);
}

void RaiseRefusal(const Refusal& refusal) {
  py::object type = py::module_::import("cudnn_aot.errors").attr("RefusedError");
  py::object operand = py::none();
  if (refusal.operand != Refusal::kNoOperand) operand = py::int_(refusal.operand);
  std::string message = refusal.what() + (" (rule " + refusal.rule + ")");
  py::object value = type(message, refusal.rule, operand);
  PyErr_SetObject(type.ptr(), value.ptr());
}

}  // namespace

void SetPythonError(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PythonErrorSet&) {
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (const Refusal& e) {
    RaiseRefusal(e);
  } catch (const LaunchFailure& e) {
    Raise("LaunchError", e.what());
  } catch (const RequirementFailure& e) {
    Raise("RequirementError", e.what());
  } catch (const TableError& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const py::builtin_exception& e) {
    e.set_error();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

}  // namespace cudnn_aot
