// The Python type `Plan`.
#pragma once

#include <Python.h>

namespace cudnn_aot {

PyObject* MakePlanType();  // a new reference; throws PythonErrorSet

}  // namespace cudnn_aot
