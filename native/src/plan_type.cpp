// The Python type `Plan`, written against the C API: `execute` is on the path of every launch.
#include "plan_type.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "backend.h"
#include "bound_plan_type.h"
#include "caller_type.h"
#include "cuda.h"
#include "description.h"
#include "error.h"
#include "gil.h"
#include "numbers.h"
#include "plan.h"
#include "plan_object.h"
#include "python_error.h"
#include "python_value.h"

namespace cudnn_aot {
namespace {

namespace py = pybind11;

// ---- Plug-ins -------------------------------------------------------------------------------

// Turns the Python error that is set into what the plug-in's caller expects: errors of this
// project and those that are no Exception (an interrupt) go on as they are.
[[noreturn]] void RaisePluginError() {
  py::error_already_set error;
  py::object ours = py::module_::import("cudnn_aot.errors").attr("Error");
  if (error.matches(ours) || !error.matches(PyExc_Exception)) {
    error.restore();
    throw PythonErrorSet{};
  }
  std::string text = py::str(error.value()).cast<std::string>();
  std::string name = error.type().attr("__name__").cast<std::string>();
  std::replace(text.begin(), text.end(), '\n', ' ');
  throw LaunchFailure(name + ": " + text);
}

// Keeps a Python object for C++, which may drop it without the interpreter lock.
std::shared_ptr<PyObject> Hold(py::handle object) {
  return {object.inc_ref().ptr(), [](PyObject* held) {
            py::gil_scoped_acquire gil;
            Py_DECREF(held);
          }};
}

// `callable(device)`, or `callable(None)` for the current one.
Devices::Hook AsHook(py::handle callable) {
  return [held = Hold(callable)](int device) {
    PyObject* result = device == Devices::kCurrent ? PyObject_CallFunction(held.get(), "O", Py_None)
                                                   : PyObject_CallFunction(held.get(), "i", device);
    if (result == nullptr) throw PythonErrorSet{};
    Py_DECREF(result);
  };
}

// A plug-in that calls `callable(device, addresses, count, workspace, stream)`.
Backend AsBackend(py::handle callable) {
  if (PyCallable_Check(callable.ptr()) == 0) throw py::type_error("backends: want callables");
  return [held = Hold(callable)](const BackendCall& call) {
    py::gil_scoped_acquire gil;
    PyObject* result = PyObject_CallFunction(
        held.get(), "iKiKK", call.device, reinterpret_cast<unsigned long long>(call.addresses),
        call.count, reinterpret_cast<unsigned long long>(call.workspace),
        reinterpret_cast<unsigned long long>(call.stream));
    if (result == nullptr) RaisePluginError();
    Py_DECREF(result);
  };
}

// ---- Construction -------------------------------------------------------------------------

// Takes a plan; `on_device` may be None and `refusals` null.
void Adopt(PlanObject* self, std::unique_ptr<Plan> plan, PyObject* on_device, PyObject* refusals) {
  self->plan = std::move(plan);
  const auto& operands = self->plan->table().operands;
  for (size_t i = 0; i < operands.size(); ++i) {
    PyObject* uid = PyLong_FromLongLong(operands[i].uid);
    if (uid == nullptr) throw PythonErrorSet{};
    self->uids.push_back(uid);
    self->labels.push_back(OperandName(operands[i]));
    if (!operands[i].has_default) self->without_defaults.push_back(static_cast<int>(i));
  }
  if (on_device != Py_None) self->devices.SetHook(AsHook(on_device));
  Py_XINCREF(refusals);
  self->refusals = refusals;
}

void Construct(PlanObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"table", "kernels", "on_device", "backends", "refusals", nullptr};
  PyObject* table = nullptr;
  PyObject* kernels = Py_None;
  PyObject* on_device = Py_None;
  PyObject* backends = Py_None;
  PyObject* refusals = nullptr;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOOO!:Plan", const_cast<char**>(names), &table,
                                  &kernels, &on_device, &backends, &PyDict_Type, &refusals) == 0) {
    throw PythonErrorSet{};
  }
  Table parsed = ParseTable(ValueOf(table));
  std::vector<std::shared_ptr<const Kernel>> loaded;
  self->has_kernels = kernels != Py_None;
  if (self->has_kernels) {
    for (py::handle kernel : py::reinterpret_borrow<py::object>(kernels)) {
      loaded.push_back(kernel.cast<std::shared_ptr<Kernel>>());
    }
  } else {
    loaded.resize(parsed.num_kernels);  // to validate and describe, not to run
  }
  std::vector<Backend> plugged;
  if (backends != Py_None) {
    for (py::handle backend : py::reinterpret_borrow<py::object>(backends)) {
      plugged.push_back(AsBackend(backend));
    }
  } else if (!self->has_kernels) {
    plugged.resize(parsed.num_blobs);
  } else if (parsed.num_blobs > 0) {
    throw RequirementFailure(
        "branches: a 'backend' step runs a cuDNN plan, got no plug-in for it, want "
        "'cudnn-aot[cudnn]' installed");
  }
  auto plan = std::make_unique<Plan>(std::move(parsed), std::move(loaded), std::move(plugged));
  Adopt(self, std::move(plan), on_device, refusals);
}

// An object that holds no plan yet; null with a Python error set.
PlanObject* Allocate(PyTypeObject* type) {
  auto* self = Self(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  new (&self->plan) std::unique_ptr<Plan>();
  new (&self->uids) std::vector<PyObject*>();
  new (&self->labels) std::vector<std::string>();
  new (&self->without_defaults) std::vector<int>();
  new (&self->keys) std::vector<PyObject*>();
  new (&self->key_operands) std::vector<int>();
  new (&self->recent) Recent();
  new (&self->devices) Devices();
  self->refusals = nullptr;
  return self;
}

PyObject* New(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PlanObject* self = Allocate(type);
  if (self == nullptr) return nullptr;
  auto* object = reinterpret_cast<PyObject*>(self);
  bool done = Guarded(false, [&] {
    Construct(self, args, kwargs);
    return true;
  });
  if (done) return object;
  Py_DECREF(object);
  return nullptr;
}

void Dealloc(PyObject* object) {
  PlanObject* self = Self(object);
  PyTypeObject* type = Py_TYPE(object);
  for (PyObject* uid : self->uids) Py_DECREF(uid);
  for (PyObject* key : self->keys) Py_DECREF(key);
  Py_XDECREF(self->refusals);
  self->plan.~unique_ptr();
  self->uids.~vector();
  self->labels.~vector();
  self->without_defaults.~vector();
  self->keys.~vector();
  self->key_operands.~vector();
  self->recent.~Recent();
  self->devices.~Devices();
  type->tp_free(object);
  Py_DECREF(type);
}

// ---- Running --------------------------------------------------------------------------------

// Runs a call that was resolved and is not settled.
void RunResolved(const Plan& plan, Frame* frame, void* stream) {
  if (plan.table().cuda) return plan.Run(frame, stream);
  WithoutGil([&] { plan.Run(frame, nullptr); });
}

// A call that is like none that is settled: checked from the start, and settled if it can be.
__attribute__((noinline)) void RunUnseen(PlanObject* self, const Call& call, void* stream) {
  const Plan& plan = *self->plan;
  bool named = false;
  DLDevice device = self->devices.Find(plan.table(), call, &named);
  Frame frame(plan.table());
  plan.Resolve(call, device, &frame);
  if (call.num_overrides == 0 && plan.table().can_settle) {
    std::shared_ptr<Settled> entry = self->recent.Take();
    if (entry != nullptr && plan.Settle(call, named, &frame, entry.get())) {
      self->recent.Keep(entry);
      return RunSettled(self, entry, call, stream);
    }
  }
  RunResolved(plan, &frame, stream);
}

}  // namespace

void RunSettled(const PlanObject* self, const std::shared_ptr<Settled>& settled, const Call& call,
                void* stream) {
  const Plan& plan = *self->plan;
  // A launch takes microseconds: giving up the lock would cost more than it gains.
  if (plan.table().cuda) return plan.Run(*settled, call, stream);
  LaunchBlock block;
  plan.Fit(*settled, call, &block);
  std::shared_ptr<Settled> held = settled;  // while others may replace it
  WithoutGil([&] { plan.Run(*held, &block, nullptr); });
}

std::shared_ptr<Settled> CheckCall(PlanObject* self, const Call& call, DLDevice* device) {
  bool named = false;
  *device = self->devices.Find(self->plan->table(), call, &named);
  Frame frame(self->plan->table());
  self->plan->Resolve(call, *device, &frame);
  auto settled = std::make_shared<Settled>();
  return self->plan->Settle(call, named, &frame, settled.get()) ? settled : nullptr;
}

void RunAgain(PlanObject* self, const std::shared_ptr<Settled>& settled, DLDevice device,
              const Call& call, void* stream) {
  const Plan& plan = *self->plan;
  if (plan.table().cuda) cuda::RefuseAfterFork();
  if (settled != nullptr && settled->Admits(plan.table(), call)) {
    return RunSettled(self, settled, call, stream);
  }
  Frame frame(plan.table());
  plan.Resolve(call, device, &frame);
  RunResolved(plan, &frame, stream);
}

void NeedKernels(const PlanObject* self) {
  if (!self->has_kernels) {
    throw LaunchFailure("this plan was made without kernels and cannot be executed");
  }
}

void CountRefusal(PlanObject* self, const std::string& rule) {
  if (self->refusals == nullptr) return;
  auto counts = py::reinterpret_borrow<py::dict>(self->refusals);
  py::str key(rule);
  counts[key] = (counts.contains(key) ? counts[key].cast<int64_t>() : 0) + 1;
}

void RunCall(PlanObject* self, const Call& call, void* stream) {
  const auto* found =
      self->recent.Find(self->plan->table(), call, [&] { return self->devices.Current(); });
  if (found == nullptr) return RunUnseen(self, call, stream);
  if (self->plan->table().cuda) cuda::RefuseAfterFork();
  RunSettled(self, *found, call, stream);
}

// ---- Methods --------------------------------------------------------------------------------

const char kExecuteDoc[] =
    "execute($self, bindings, workspace=None, stream=None, symbols=None, override_uids=None, "
    "override_shapes=None, override_strides=None)\n--\n\n"
    "Check one call against the plan and launch its steps.";
const char kResolveDoc[] =
    "resolve($self, bindings, workspace=None, stream=None, symbols=None, override_uids=None, "
    "override_shapes=None, override_strides=None)\n--\n\n"
    "Check one call against the plan and describe what execute would launch.";
const char kCallerDoc[] =
    "caller($self, uids, /)\n--\n\n"
    "A callable that takes the buffers of these operands as positional arguments, in this order.";
const char kLauncherDoc[] =
    "launcher($self, bindings, workspace=None, stream=None, symbols=None, override_uids=None, "
    "override_shapes=None, override_strides=None)\n--\n\n"
    "Check a call and return a callable that repeats it with other addresses.";
const char kPrepareDoc[] =
    "prepare($self, device, /)\n--\n\nDo all lazy CUDA work of the plan on a device.";
const char kWorkspaceBytesDoc[] =
    "workspace_bytes($self, symbols=None)\n--\n\nThe workspace that calls may need, in bytes.";

PyObject* Execute(PlanObject* self, const Binding* binding, PyObject* const* args, Py_ssize_t count,
                  PyObject* keywords) {
  return Counted(self, [&]() -> PyObject* {
    PyObject* arguments[kNumParameters] = {};
    ParseArguments("execute", args, count, keywords, arguments);
    NeedKernels(self);
    Gathered gathered;
    Gather(self, binding, arguments, &gathered);
    RunCall(self, gathered.call, StreamHandle(arguments[kStream]));
    Py_RETURN_NONE;
  });
}

PyObject* Resolve(PlanObject* self, const Binding* binding, PyObject* const* args, Py_ssize_t count,
                  PyObject* keywords) {
  return Guarded<PyObject*>(nullptr, [&]() -> PyObject* {
    PyObject* arguments[kNumParameters] = {};
    ParseArguments("resolve", args, count, keywords, arguments);
    Gathered gathered;
    Gather(self, binding, arguments, &gathered);
    // Without a workspace the slices are described from address 0 on.
    if (gathered.workspace.kind == Buffer::Kind::kAbsent) gathered.call.workspace = nullptr;
    bool named = false;
    DLDevice device = self->devices.Find(self->plan->table(), gathered.call, &named);
    Frame frame(self->plan->table());
    self->plan->Resolve(gathered.call, device, &frame);
    return DescribeCall(*self->plan, gathered.call, &frame).release().ptr();
  });
}

PyObject* Prepare(PlanObject* self, PyObject* argument) {
  return Guarded<PyObject*>(nullptr, [&]() -> PyObject* {
    if (!self->plan->table().cuda) Py_RETURN_NONE;
    if (!self->has_kernels) {
      throw LaunchFailure("this plan was made without kernels and cannot be prepared");
    }
    cuda::RefuseAfterFork();
    int device = 0;
    if (argument == Py_None) {
      device = self->devices.Current();
    } else {
      int64_t given = 0;
      if (!ReadInteger(argument, &given) || given < 0 || given >= cuda::kMaxDevices) {
        throw RequirementFailure("no such device: got " + Shown(argument));
      }
      device = static_cast<int>(given);
    }
    self->devices.Ensure(device);
    self->plan->Prepare(device);
    Py_RETURN_NONE;
  });
}

PyObject* WorkspaceBytes(PlanObject* self, const Binding* binding, PyObject* args,
                         PyObject* kwargs) {
  return Guarded<PyObject*>(nullptr, [&]() -> PyObject* {
    static const char* names[] = {"symbols", nullptr};
    PyObject* symbols = Py_None;
    if (PyArg_ParseTupleAndKeywords(args, kwargs, "|O:workspace_bytes", const_cast<char**>(names),
                                    &symbols) == 0) {
      throw PythonErrorSet{};
    }
    SymbolValue values[kMaxSymbols];
    int count = GatherSymbols(self, binding, symbols, values);
    return PyLong_FromLongLong(self->plan->WorkspaceBytes(values, count, self->devices.SmCounts()));
  });
}

namespace {

PyObject* GetDevice(PyObject* object, void*) {
  return PyUnicode_FromString(Self(object)->plan->table().cuda ? "cuda" : "cpu");
}

PyObject* GetUids(PyObject* object, void*) {
  return Guarded<PyObject*>(nullptr, [&]() -> PyObject* {
    py::tuple out(Self(object)->uids.size());
    for (size_t i = 0; i < Self(object)->uids.size(); ++i) {
      out[i] = py::reinterpret_borrow<py::object>(Self(object)->uids[i]);
    }
    return out.release().ptr();
  });
}

PyObject* ExecutePlan(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return Execute(Self(self), nullptr, args, count, keywords);
}

PyObject* ResolvePlan(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return Resolve(Self(self), nullptr, args, count, keywords);
}

PyObject* PreparePlan(PyObject* self, PyObject* device) { return Prepare(Self(self), device); }

PyObject* WorkspaceBytesOfPlan(PyObject* self, PyObject* args, PyObject* kwargs) {
  return WorkspaceBytes(Self(self), nullptr, args, kwargs);
}

PyObject* Bind(PyObject* self, PyObject* args, PyObject* kwargs) {
  return Guarded<PyObject*>(nullptr, [&] { return MakeBoundPlan(Self(self), args, kwargs); });
}

PyObject* CallerOfPlan(PyObject* self, PyObject* uids) {
  return Guarded<PyObject*>(nullptr, [&] { return MakeCaller(self, Self(self), nullptr, uids); });
}

PyObject* LauncherOfPlan(PyObject* self, PyObject* const* args, Py_ssize_t count,
                         PyObject* keywords) {
  return Guarded<PyObject*>(
      nullptr, [&] { return MakeLauncher(Self(self), nullptr, args, count, keywords); });
}

PyMethodDef kMethods[] = {
    {"caller", CallerOfPlan, METH_O, kCallerDoc},
    {"launcher", AsFunction(LauncherOfPlan), METH_FASTCALL | METH_KEYWORDS, kLauncherDoc},
    {"execute", AsFunction(ExecutePlan), METH_FASTCALL | METH_KEYWORDS, kExecuteDoc},
    {"resolve", AsFunction(ResolvePlan), METH_FASTCALL | METH_KEYWORDS, kResolveDoc},
    {"prepare", PreparePlan, METH_O, kPrepareDoc},
    {"workspace_bytes", AsFunction(WorkspaceBytesOfPlan), METH_VARARGS | METH_KEYWORDS,
     kWorkspaceBytesDoc},
    {"bind", AsFunction(Bind), METH_VARARGS | METH_KEYWORDS,
     "bind($self, symbols, scalars=None)\n--\n\nThe plan with values of symbols and of scalars by "
     "uid."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef kProperties[] = {
    {"device", GetDevice, nullptr, "'cuda' or 'cpu'", nullptr},
    {"uids", GetUids, nullptr, "The operands' uids, ascending.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot kSlots[] = {
    {Py_tp_new, reinterpret_cast<void*>(New)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
    {Py_tp_methods, kMethods},
    {Py_tp_getset, kProperties},
    {Py_tp_doc,
     const_cast<char*>("Plan(table, kernels=None, on_device=None, backends=None, refusals={})\n--"
                       "\n\n"
                       "A launch table with its kernels.")},
    {0, nullptr},
};

PyType_Spec kSpec = {"cudnn_aot._native.Plan", sizeof(PlanObject), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, kSlots};

}  // namespace

PyObject* MakePlanType() {
  PyObject* type = PyType_FromSpec(&kSpec);
  if (type == nullptr) throw PythonErrorSet{};
  return type;
}

PyObject* MakePlan(PyTypeObject* type, std::unique_ptr<Plan> plan, PyObject* on_device,
                   PyObject* refusals) {
  PlanObject* self = Allocate(type);
  if (self == nullptr) throw PythonErrorSet{};
  auto object = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(self));
  self->has_kernels = true;
  Adopt(self, std::move(plan), on_device, refusals);
  return object.release().ptr();
}

}  // namespace cudnn_aot
