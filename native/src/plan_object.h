// What the Python type `Plan` holds.
#pragma once

#include <Python.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "cuda.h"
#include "plan.h"

namespace cudnn_aot {

struct PlanObject {
  PyObject_HEAD std::unique_ptr<Plan> plan;
  PyObject* on_device;                // called with a device id before its first use, or null
  std::vector<PyObject*> uids;        // dict keys, by operand
  std::vector<std::string> labels;    // "operand 1 'A'", by operand
  std::vector<int> without_defaults;  // operands but for the scalars that have a default
  bool has_kernels;
  bool has_runtime;  // the hook was asked for the current device once
  std::atomic<bool> ready[cuda::kMaxDevices];
};

inline PlanObject* Self(PyObject* self) { return reinterpret_cast<PlanObject*>(self); }

}  // namespace cudnn_aot
