// The Python type `BoundPlan`: a plan with values of its symbols and scalars.
#pragma once

#include <Python.h>

#include "plan_object.h"

namespace cudnn_aot {

PyObject* MakeBoundPlanType();  // a new reference; throws PythonErrorSet

// `plan.bind(symbols, scalars=None)`: a new BoundPlan. Throws Refusal for a value that is out of
// range and for a uid that is no scalar's, and PythonErrorSet.
PyObject* MakeBoundPlan(PlanObject* plan, PyObject* args, PyObject* kwargs);

}  // namespace cudnn_aot
