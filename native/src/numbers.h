// Python numbers, and Python objects in messages.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>

#include "objects.h"

namespace cudnn_aot {

// All functions below hold the GIL.

// One line of at most 80 characters that shows the object.
std::string Shown(PyObject* object);

// False, and no Python error, unless the object is an integer that fits int64.
bool ReadInteger(PyObject* object, int64_t* out);

// A number, or a host buffer of one element; for an element without a number type of its own
// (uint16 for BFLOAT16) `dtype` says what the bits are.
void DescribeNumber(PyObject* object, const DType& dtype, const Role& role, Pins* pins,
                    Buffer* out);

// None, an int handle, or an object with `cuda_stream`, `__cuda_stream__` or `ptr`.
void* StreamHandle(PyObject* object);

}  // namespace cudnn_aot
