#include "caller_type.h"

#include <structmember.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "error.h"
#include "numbers.h"
#include "plan_type.h"
#include "python_error.h"

namespace cudnn_aot {
namespace {

PyTypeObject* caller_type = nullptr;
PyTypeObject* launcher_type = nullptr;

struct CallerObject {
  PyObject_HEAD vectorcallfunc call;
  PyObject* owner;  // keeps `plan` and `binding`
  PlanObject* plan;
  const Binding* binding;
  std::vector<int> operands;  // of the positional arguments
};

struct LauncherObject {
  PyObject_HEAD vectorcallfunc call;
  PlanObject* plan;
  PyObject* workspace_object;  // null for none
  std::vector<int> operands;   // of the positional arguments
  // The call, whose addresses are replaced. The rest is never changed.
  std::vector<Buffer> buffers;
  Buffer workspace;
  std::vector<int64_t> axes;  // that `buffers` point into
  std::vector<SymbolValue> symbols;
  std::vector<Override> overrides;
  DLDevice device;
  std::shared_ptr<Settled> settled;  // null for a call that cannot be settled
};

CallerObject* AsCaller(PyObject* self) { return reinterpret_cast<CallerObject*>(self); }
LauncherObject* AsLauncher(PyObject* self) { return reinterpret_cast<LauncherObject*>(self); }

[[noreturn]] void RefuseCount(const PlanObject* plan, const std::vector<int>& operands, size_t got,
                              const char* what) {
  std::string want;
  for (int i : operands) want += (want.empty() ? "" : ", ") + plan->labels[i];
  throw Refusal("presence", Refusal::kNoOperand,
                "got " + std::to_string(got) + " " + what + ", want " +
                    std::to_string(operands.size()) + ": " + want);
}

// ---- Caller ---------------------------------------------------------------------------------

PyObject* CallCaller(PyObject* object, PyObject* const* args, size_t flags, PyObject* keywords) {
  CallerObject* self = AsCaller(object);
  return Counted(self->plan, [&]() -> PyObject* {
    auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
    PyObject* arguments[kNumParameters] = {};
    arguments[kBindings] = Py_None;  // so that it is refused as a keyword
    ParseKeywords("caller", args + count, keywords, arguments);
    NeedKernels(self->plan);
    if (count != self->operands.size()) RefuseCount(self->plan, self->operands, count, "buffers");
    Gathered gathered;
    Gather(self->plan, self->binding, self->operands, args, arguments, &gathered);
    RunCall(self->plan, gathered.call, StreamHandle(arguments[kStream]));
    Py_RETURN_NONE;
  });
}

void DeallocCaller(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  Py_DECREF(AsCaller(object)->owner);
  AsCaller(object)->operands.~vector();
  type->tp_free(object);
  Py_DECREF(type);
}

// ---- Launcher -------------------------------------------------------------------------------

PyObject* CallLauncher(PyObject* object, PyObject* const* args, size_t flags, PyObject* keywords) {
  LauncherObject* self = AsLauncher(object);
  return Counted(self->plan, [&]() -> PyObject* {
    auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
    PyObject* arguments[kNumParameters] = {};
    ParseKeywords("launcher", args + count, keywords, arguments);
    for (int i = 0; i < kNumParameters; ++i) {
      if (arguments[i] == nullptr || i == kWorkspace || i == kStream) continue;
      PyErr_SetString(PyExc_TypeError, "launcher: takes no argument but workspace and stream");
      throw PythonErrorSet{};
    }
    if (count != self->operands.size()) RefuseCount(self->plan, self->operands, count, "addresses");
    Pins pins;
    Buffer workspace = self->workspace;
    if (arguments[kWorkspace] != nullptr) {
      workspace = Buffer{};
      DescribeBuffer(arguments[kWorkspace], {"workspace"}, &pins, &workspace);
    }
    void* stream = StreamHandle(arguments[kStream]);
    // No Python code runs from here on until all addresses have been used.
    for (size_t i = 0; i < count; ++i) {
      int operand = self->operands[i];
      Role role{self->plan->labels[operand].c_str(),
                self->plan->plan->table().operands[operand].uid};
      if (!PyLong_Check(args[i]) || PyBool_Check(args[i])) {
        PyErr_Format(PyExc_TypeError, "%s: got a %s, want an address", role.name,
                     Py_TYPE(args[i])->tp_name);
        throw PythonErrorSet{};
      }
      self->buffers[operand].data = ReadAddress(args[i], role);
    }
    Call call;
    call.buffers = self->buffers.data();
    call.workspace = &workspace;
    call.symbols = self->symbols.data();
    call.num_symbols = static_cast<int>(self->symbols.size());
    call.overrides = self->overrides.data();
    call.num_overrides = static_cast<int>(self->overrides.size());
    RunAgain(self->plan, self->settled, self->device, call, stream);
    Py_RETURN_NONE;
  });
}

void DeallocLauncher(PyObject* object) {
  LauncherObject* self = AsLauncher(object);
  PyTypeObject* type = Py_TYPE(object);
  Py_DECREF(reinterpret_cast<PyObject*>(self->plan));
  Py_XDECREF(self->workspace_object);
  self->operands.~vector();
  self->buffers.~vector();
  self->axes.~vector();
  self->symbols.~vector();
  self->overrides.~vector();
  self->settled.~shared_ptr();
  type->tp_free(object);
  Py_DECREF(type);
}

// Copies what the call borrows, so that it outlives the objects that it was described from.
void KeepCall(const Gathered& gathered, LauncherObject* self) {
  const Table& table = self->plan->plan->table();
  const Call& call = gathered.call;
  self->buffers.assign(call.buffers, call.buffers + table.operands.size());
  self->workspace = gathered.workspace;
  self->symbols.assign(call.symbols, call.symbols + call.num_symbols);
  self->overrides = gathered.overrides;
  size_t axes = 2 * static_cast<size_t>(self->workspace.ndim);
  for (const Buffer& buffer : self->buffers) axes += 2 * static_cast<size_t>(buffer.ndim);
  self->axes.resize(axes);
  int64_t* next = self->axes.data();
  auto own = [&](Buffer* buffer) {
    for (const int64_t** from : {&buffer->shape, &buffer->strides}) {
      if (*from == nullptr) continue;
      std::copy_n(*from, buffer->ndim, next);
      *from = next;
      next += buffer->ndim;
    }
  };
  for (Buffer& buffer : self->buffers) own(&buffer);
  own(&self->workspace);
  for (int i : table.tensors) {
    if (self->buffers[i].kind != Buffer::Kind::kAbsent) self->operands.push_back(i);
  }
}

// ---- Types ----------------------------------------------------------------------------------

PyMemberDef kCallerMembers[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CallerObject, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyMemberDef kLauncherMembers[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(LauncherObject, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot kCallerSlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(DeallocCaller)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_members, kCallerMembers},
    {Py_tp_doc, const_cast<char*>("A plan that takes its buffers as positional arguments.")},
    {0, nullptr},
};
PyType_Slot kLauncherSlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(DeallocLauncher)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_members, kLauncherMembers},
    {Py_tp_doc, const_cast<char*>("A checked call that is repeated with other addresses.")},
    {0, nullptr},
};

constexpr unsigned kFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE |
                            Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_VECTORCALL;
PyType_Spec kCallerSpec = {"cudnn_aot._native.Caller", sizeof(CallerObject), 0, kFlags,
                           kCallerSlots};
PyType_Spec kLauncherSpec = {"cudnn_aot._native.Launcher", sizeof(LauncherObject), 0, kFlags,
                             kLauncherSlots};

PyObject* MakeType(PyType_Spec* spec, PyTypeObject** out) {
  PyObject* type = PyType_FromSpec(spec);
  if (type == nullptr) throw PythonErrorSet{};
  Py_INCREF(type);  // for the life of the process
  *out = reinterpret_cast<PyTypeObject*>(type);
  return type;
}

}  // namespace

PyObject* MakeCallerType() { return MakeType(&kCallerSpec, &caller_type); }
PyObject* MakeLauncherType() { return MakeType(&kLauncherSpec, &launcher_type); }

PyObject* MakeCaller(PyObject* owner, PlanObject* plan, const Binding* binding, PyObject* uids) {
  const Table& table = plan->plan->table();
  std::vector<int> operands;
  PyObject* items = PySequence_Tuple(uids);
  if (items == nullptr) throw PythonErrorSet{};
  Pins pins;
  pins.Adopt(items);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); ++i) {
    PyObject* item = PyTuple_GET_ITEM(items, i);
    int64_t uid = 0;
    int operand = PyLong_Check(item) && ReadInteger(item, &uid) ? table.FindOperand(uid) : -1;
    if (operand < 0 || std::count(operands.begin(), operands.end(), operand) != 0) {
      std::string want;
      for (const std::string& label : plan->labels) want += (want.empty() ? "" : ", ") + label;
      throw Refusal(
          "name", Refusal::kNoOperand,
          "caller: got " + Shown(item) + (operand < 0 ? "" : " twice") + ", want uids of " + want);
    }
    operands.push_back(operand);
  }
  PyObject* object = caller_type->tp_alloc(caller_type, 0);
  if (object == nullptr) throw PythonErrorSet{};
  CallerObject* self = AsCaller(object);
  new (&self->operands) std::vector<int>(std::move(operands));
  self->call = CallCaller;
  Py_INCREF(owner);
  self->owner = owner;
  self->plan = plan;
  self->binding = binding;
  return object;
}

PyObject* MakeLauncher(PlanObject* plan, const Binding* binding, PyObject* const* args,
                       Py_ssize_t count, PyObject* keywords) {
  PyObject* arguments[kNumParameters] = {};
  ParseArguments("launcher", args, count, keywords, arguments);
  NeedKernels(plan);
  if (arguments[kStream] != nullptr && arguments[kStream] != Py_None) {
    PyErr_SetString(PyExc_TypeError, "launcher: the stream is an argument of the calls");
    throw PythonErrorSet{};
  }
  Gathered gathered;
  Gather(plan, binding, arguments, &gathered);
  PyObject* object = launcher_type->tp_alloc(launcher_type, 0);
  if (object == nullptr) throw PythonErrorSet{};
  LauncherObject* self = AsLauncher(object);
  new (&self->operands) std::vector<int>();
  new (&self->buffers) std::vector<Buffer>();
  new (&self->workspace) Buffer();
  new (&self->axes) std::vector<int64_t>();
  new (&self->symbols) std::vector<SymbolValue>();
  new (&self->overrides) std::vector<Override>();
  new (&self->settled) std::shared_ptr<Settled>();
  self->call = CallLauncher;
  Py_INCREF(reinterpret_cast<PyObject*>(plan));
  self->plan = plan;
  Py_XINCREF(arguments[kWorkspace]);
  self->workspace_object = arguments[kWorkspace];
  try {
    self->settled = CheckCall(plan, gathered.call, &self->device);
    KeepCall(gathered, self);
  } catch (...) {
    Py_DECREF(object);
    throw;
  }
  return object;
}

}  // namespace cudnn_aot
