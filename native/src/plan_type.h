// The Python type `Plan`, and what its methods share with those of `BoundPlan`.
#pragma once

#include <Python.h>

#include <memory>
#include <string>

#include "error.h"
#include "plan_object.h"
#include "python_error.h"

namespace cudnn_aot {

PyObject* MakePlanType();  // a new reference; throws PythonErrorSet

// An object of that type, a new reference, for a plan that is loaded; its arguments are those of
// the type's. Throws PythonErrorSet.
PyObject* MakePlan(PyTypeObject* type, std::unique_ptr<Plan> plan, PyObject* on_device,
                   PyObject* refusals);

// The methods; `binding` is null for a plan that is not bound.
PyObject* Execute(PlanObject* self, const Binding* binding, PyObject* const* args, Py_ssize_t count,
                  PyObject* keywords);
PyObject* Resolve(PlanObject* self, const Binding* binding, PyObject* const* args, Py_ssize_t count,
                  PyObject* keywords);
PyObject* Prepare(PlanObject* self, PyObject* device);
PyObject* WorkspaceBytes(PlanObject* self, const Binding* binding, PyObject* args,
                         PyObject* kwargs);

void NeedKernels(const PlanObject* self);  // throws LaunchFailure

// Checks a call and runs it; `settled` is one that the call matches. Both throw Refusal,
// LaunchFailure and PythonErrorSet.
void RunCall(PlanObject* self, const Call& call, void* stream);
void RunSettled(const PlanObject* self, const std::shared_ptr<Settled>& settled, const Call& call,
                void* stream);

// Checks a call and launches nothing: the call settled, or null if it cannot be. Then RunAgain runs
// it with other addresses, on the device that it was checked for.
std::shared_ptr<Settled> CheckCall(PlanObject* self, const Call& call, DLDevice* device);
void RunAgain(PlanObject* self, const std::shared_ptr<Settled>& settled, DLDevice device,
              const Call& call, void* stream);

// Notes a refusal by its rule, where the plan's statistics are kept.
void CountRefusal(PlanObject* self, const std::string& rule);

// As Guarded, for calls; a refusal is counted on its way out. A call that succeeds pays nothing.
template <typename Body>
PyObject* Counted(PlanObject* self, Body body) {
  return Guarded<PyObject*>(nullptr, [&]() -> PyObject* {
    try {
      return body();
    } catch (const Refusal& refusal) {
      CountRefusal(self, refusal.rule);
      throw;
    }
  });
}

// Rows of the method tables of both types.
extern const char kExecuteDoc[];
extern const char kCallerDoc[];
extern const char kLauncherDoc[];
extern const char kResolveDoc[];
extern const char kPrepareDoc[];
extern const char kWorkspaceBytesDoc[];

template <typename F>
PyCFunction AsFunction(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

}  // namespace cudnn_aot
