// Python errors from C++ ones; the binding layer only.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>

namespace cudnn_aot {

// Sets the Python error that stands for a C++ exception: cudnn_aot.errors.* or ValueError.
void SetPythonError(const std::exception_ptr& error);

// Runs `body` and turns whatever it throws into a Python error and `failure`.
template <typename Result, typename Body>
Result Guarded(Result failure, Body body) {
  try {
    return body();
  } catch (...) {
    SetPythonError(std::current_exception());
    return failure;
  }
}

// Thrown by code that has set a Python error itself.
struct PythonErrorSet {};

}  // namespace cudnn_aot
