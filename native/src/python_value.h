// JSON-like Python data as a Value.
#pragma once

#include <Python.h>

#include "value.h"

namespace cudnn_aot {

Value ValueOf(PyObject* object);  // holds the GIL; throws TableError with the place

}  // namespace cudnn_aot
