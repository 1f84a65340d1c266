// What the Python types `Plan` and `BoundPlan` hold.
#pragma once

#include <Python.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "devices.h"
#include "plan.h"
#include "settled.h"

namespace cudnn_aot {

struct PlanObject {
  PyObject_HEAD std::unique_ptr<Plan> plan;
  PyObject* refusals;                 // dict of counts by rule, or null
  std::vector<PyObject*> uids;        // dict keys, by operand
  std::vector<std::string> labels;    // "operand 1 'A'", by operand
  std::vector<int> without_defaults;  // operands but for the scalars that have a default
  std::vector<PyObject*> keys;        // of the last dict that had a uid for every key, in order
  std::vector<int> key_operands;      // of each key
  Recent recent;
  Devices devices;
  bool has_kernels;
};

// What every call of a bound plan has in common.
struct Binding {
  std::vector<SymbolValue> symbols;
  std::vector<std::pair<size_t, Buffer>> scalars;  // numbers, by operand
  std::vector<int> without_defaults;               // operands but for scalars that have a value
};

struct BoundPlanObject {
  PyObject_HEAD PlanObject* plan;  // a reference of its own
  Binding binding;
};

inline PlanObject* Self(PyObject* self) { return reinterpret_cast<PlanObject*>(self); }

}  // namespace cudnn_aot
