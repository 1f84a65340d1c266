// The Python types `Caller` and `Launcher`: a plan called with buffers in an order chosen once, and
// a call checked once that is repeated with other addresses.
#pragma once

#include <Python.h>

#include "plan_object.h"

namespace cudnn_aot {

PyObject* MakeCallerType();  // new references; throw PythonErrorSet
PyObject* MakeLauncherType();

// `plan.caller(uids)`: positional buffers for these operands. `owner` is the Plan or BoundPlan
// whose method it is, `binding` null for a Plan. Throws Refusal ("name") and PythonErrorSet.
PyObject* MakeCaller(PyObject* owner, PlanObject* plan, const Binding* binding, PyObject* uids);

// `plan.launcher(...)`, with the arguments of `execute` but for a stream: positional addresses for
// the operands that the call binds. Throws Refusal, LaunchFailure and PythonErrorSet.
PyObject* MakeLauncher(PlanObject* plan, const Binding* binding, PyObject* const* args,
                       Py_ssize_t count, PyObject* keywords);

}  // namespace cudnn_aot
