// The Python type `Plan`, written against the C API: `execute` is on the path of every launch.
#include "plan_type.h"

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "cuda.h"
#include "error.h"
#include "ffi.h"
#include "objects.h"
#include "plan.h"
#include "python_error.h"

namespace cudnn_aot {
namespace {

namespace py = pybind11;

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

PlanObject* Self(PyObject* self) { return reinterpret_cast<PlanObject*>(self); }

[[noreturn]] void RefuseCall(const char* rule, const std::string& message) {
  throw Refusal(rule, Refusal::kNoOperand, message);
}

// ---- Construction -------------------------------------------------------------------------

void Construct(PlanObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"table", "kernels", "on_device", nullptr};
  PyObject* table = nullptr;
  PyObject* kernels = Py_None;
  PyObject* on_device = Py_None;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO:Plan", const_cast<char**>(names), &table,
                                  &kernels, &on_device) == 0) {
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
  self->plan = std::make_unique<Plan>(std::move(parsed), std::move(loaded));
  const auto& operands = self->plan->table().operands;
  for (size_t i = 0; i < operands.size(); ++i) {
    PyObject* uid = PyLong_FromLongLong(operands[i].uid);
    if (uid == nullptr) throw PythonErrorSet{};
    self->uids.push_back(uid);
    self->labels.push_back(OperandName(operands[i]));
    if (!operands[i].has_default) self->without_defaults.push_back(static_cast<int>(i));
  }
  if (on_device != Py_None) {
    Py_INCREF(on_device);
    self->on_device = on_device;
  }
}

PyObject* New(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  auto* self = Self(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  new (&self->plan) std::unique_ptr<Plan>();
  new (&self->uids) std::vector<PyObject*>();
  new (&self->labels) std::vector<std::string>();
  new (&self->without_defaults) std::vector<int>();
  for (auto& ready : self->ready) new (&ready) std::atomic<bool>(false);
  self->on_device = nullptr;
  self->has_runtime = false;
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
  Py_XDECREF(self->on_device);
  self->plan.~unique_ptr();
  self->uids.~vector();
  self->labels.~vector();
  self->without_defaults.~vector();
  type->tp_free(object);
  Py_DECREF(type);
}

// ---- What a call binds ----------------------------------------------------------------------

struct Gathered {
  static constexpr size_t kInline = 16;

  // Raw, since clearing entries that a call does not use costs as much as describing a few.
  alignas(Buffer) char inline_buffers[kInline * sizeof(Buffer)];
  std::vector<Buffer> more;
  Buffer workspace;
  SymbolValue symbols[kMaxSymbols];
  std::vector<Override> overrides;
  Pins pins;
  Call call;
};

void Describe(const PlanObject* self, size_t index, PyObject* object, Buffer* buffers, Pins* pins) {
  const Operand& operand = self->plan->table().operands[index];
  const char* label = self->labels[index].c_str();
  if (operand.kind == Operand::Kind::kScalar) {
    DescribeNumber(object, *operand.dtype, label, pins, &buffers[index]);
  } else {
    DescribeBuffer(object, label, pins, &buffers[index]);
  }
}

// Keys that are no uid: names of operands, and None, which callers use for "not this time".
void DescribeNamed(const PlanObject* self, PyObject* bindings, Buffer* buffers, Pins* pins) {
  const auto& operands = self->plan->table().operands;
  PyObject* key = nullptr;
  PyObject* object = nullptr;
  Py_ssize_t at = 0;
  while (PyDict_Next(bindings, &at, &key, &object) != 0) {
    if (key == Py_None || PyLong_Check(key)) continue;  // further uids are ignored
    const char* name = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : nullptr;
    if (name == nullptr) {
      PyErr_Format(PyExc_TypeError, "bindings: got a key of type %s, want a uid or a name",
                   Py_TYPE(key)->tp_name);
      throw PythonErrorSet{};
    }
    int found = -1;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (operands[i].name != name) continue;
      if (found >= 0) {
        RefuseCall("name", std::string("got the name '") + name +
                               "', which several operands have, want a uid");
      }
      found = static_cast<int>(i);
    }
    if (found < 0) {
      std::vector<std::string> names;
      for (const Operand& operand : operands) names.push_back(operand.name);
      RefuseCall("name", std::string("got the name '") + name + "', want " + Choices(names));
    }
    if (buffers[found].kind == Buffer::Kind::kAbsent) {
      Describe(self, static_cast<size_t>(found), object, buffers, pins);
    }
  }
}

void GatherBindings(const PlanObject* self, PyObject* bindings, Buffer* buffers, Pins* pins) {
  size_t count = self->uids.size();
  if (PyDict_Check(bindings)) {
    Py_ssize_t found = 0;
    for (size_t i = 0; i < count; ++i) {
      PyObject* object = PyDict_GetItemWithError(bindings, self->uids[i]);
      if (object == nullptr) {
        if (PyErr_Occurred() != nullptr) throw PythonErrorSet{};
        continue;
      }
      ++found;
      Describe(self, i, object, buffers, pins);
    }
    if (found != PyDict_GET_SIZE(bindings)) DescribeNamed(self, bindings, buffers, pins);
    return;
  }
  if (!PyList_Check(bindings) && !PyTuple_Check(bindings)) {
    PyErr_Format(PyExc_TypeError,
                 "bindings: got a %s, want a dict of uids or a list in ascending uid order",
                 Py_TYPE(bindings)->tp_name);
    throw PythonErrorSet{};
  }
  auto given = static_cast<size_t>(PySequence_Fast_GET_SIZE(bindings));
  bool shorter = given != count && given == self->without_defaults.size();
  if (given != count && !shorter) {
    std::string want = std::to_string(count);
    if (self->without_defaults.size() != count) {
      want += " or, without the scalars that have a default, " +
              std::to_string(self->without_defaults.size());
    }
    RefuseCall("presence", "got " + std::to_string(given) + " buffers, want " + want +
                               ", in ascending uid order");
  }
  for (size_t i = 0; i < given; ++i) {
    size_t operand = shorter ? static_cast<size_t>(self->without_defaults[i]) : i;
    // Read again each time: describing an object may run Python code.
    if (i >= static_cast<size_t>(PySequence_Fast_GET_SIZE(bindings))) break;
    Describe(self, operand, PySequence_Fast_GET_ITEM(bindings, static_cast<Py_ssize_t>(i)), buffers,
             pins);
  }
}

int GatherSymbols(const PlanObject* self, PyObject* symbols, SymbolValue* out) {
  if (symbols == nullptr || symbols == Py_None) return 0;
  if (!PyDict_Check(symbols)) {
    PyErr_Format(PyExc_TypeError, "symbols: got a %s, want a dict", Py_TYPE(symbols)->tp_name);
    throw PythonErrorSet{};
  }
  const Table& table = self->plan->table();
  int count = 0;
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t at = 0;
  while (PyDict_Next(symbols, &at, &key, &value) != 0) {
    const char* name = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : nullptr;
    int symbol = name == nullptr ? -1 : table.FindSymbol(name);
    if (symbol < 0) {
      PyErr_Clear();
      RefuseCall("symbol_unknown", std::string("symbols: got '") + (name == nullptr ? "?" : name) +
                                       "', want " +
                                       (table.symbols.empty() ? "none, the graph has no symbol"
                                                              : Choices(table.symbol_names)));
    }
    int64_t number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred() != nullptr) throw PythonErrorSet{};
    out[count++] = {symbol, number};
  }
  return count;
}

std::vector<int64_t> Integers(PyObject* object) {
  py::object sequence =
      py::reinterpret_steal<py::object>(PySequence_Fast(object, "want a sequence of integers"));
  if (!sequence) throw PythonErrorSet{};
  std::vector<int64_t> out;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence.ptr()); ++i) {
    out.push_back(PyLong_AsLongLong(PySequence_Fast_GET_ITEM(sequence.ptr(), i)));
    if (out.back() == -1 && PyErr_Occurred() != nullptr) throw PythonErrorSet{};
  }
  return out;
}

void GatherOverrides(const PlanObject* self, PyObject* uids, PyObject* shapes, PyObject* strides,
                     std::vector<Override>* out) {
  auto given = [](PyObject* object) { return object != nullptr && object != Py_None; };
  if (!given(uids) && !given(shapes) && !given(strides)) return;
  if (!given(uids) || !given(shapes) || !given(strides)) {
    RefuseCall("override",
               "got some of override_uids, override_shapes and override_strides, want "
               "all three or none");
  }
  std::vector<int64_t> ids = Integers(uids);
  auto sequence = [](PyObject* object) {
    py::object out =
        py::reinterpret_steal<py::object>(PySequence_Fast(object, "want a sequence of sequences"));
    if (!out) throw PythonErrorSet{};
    return out;
  };
  py::object all_shapes = sequence(shapes);
  py::object all_strides = sequence(strides);
  auto num_shapes = static_cast<size_t>(PySequence_Fast_GET_SIZE(all_shapes.ptr()));
  auto num_strides = static_cast<size_t>(PySequence_Fast_GET_SIZE(all_strides.ptr()));
  if (ids.size() != num_shapes || ids.size() != num_strides) {
    RefuseCall("override", "got " + std::to_string(ids.size()) + " override_uids, " +
                               std::to_string(num_shapes) + " override_shapes and " +
                               std::to_string(num_strides) +
                               " override_strides, want three of one length");
  }
  const Table& table = self->plan->table();
  for (size_t i = 0; i < ids.size(); ++i) {
    int operand = table.FindOperand(ids[i]);
    if (operand < 0 || table.operands[operand].kind == Operand::Kind::kScalar) {
      RefuseCall("override", "got uid " + std::to_string(ids[i]) +
                                 " in override_uids, want that of a tensor operand");
    }
    Override item{
        operand, Integers(PySequence_Fast_GET_ITEM(all_shapes.ptr(), static_cast<Py_ssize_t>(i))),
        Integers(PySequence_Fast_GET_ITEM(all_strides.ptr(), static_cast<Py_ssize_t>(i)))};
    auto rank = static_cast<size_t>(table.operands[operand].rank);
    if (item.shape.size() != rank || item.stride.size() != rank) {
      throw Refusal("override", ids[i],
                    self->labels[operand] + ": got an override of " +
                        std::to_string(item.shape.size()) + " extents and " +
                        std::to_string(item.stride.size()) + " strides, want " +
                        std::to_string(rank) + " of each");
    }
    out->push_back(std::move(item));
  }
}

// ---- Devices --------------------------------------------------------------------------------

void EnsureReady(PlanObject* self, int device) {
  if (device < 0 || device >= cuda::kMaxDevices) {
    throw RequirementFailure("no such device: got cuda:" + std::to_string(device));
  }
  if (self->ready[device].load(std::memory_order_acquire)) return;
  if (self->on_device != nullptr) {
    PyObject* result = PyObject_CallFunction(self->on_device, "i", device);
    if (result == nullptr) throw PythonErrorSet{};
    Py_DECREF(result);
  }
  self->ready[device].store(true, std::memory_order_release);
}

// The hook with no device yet: it makes a libcudart visible, which tells the current device.
int CurrentDevice(PlanObject* self) {
  if (!self->has_runtime && self->on_device != nullptr) {
    PyObject* result = PyObject_CallFunction(self->on_device, "O", Py_None);
    if (result == nullptr) throw PythonErrorSet{};
    Py_DECREF(result);
    self->has_runtime = true;
  }
  return cuda::CurrentDevice();
}

DLDevice FindCallDevice(PlanObject* self, const Call& call) {
  DLDevice device{kDLCPU, 0};
  const Table& table = self->plan->table();
  bool known = FindDevice(table, call, &device);
  if (!table.cuda) return device;
  cuda::RefuseAfterFork();
  if (!known) device = {kDLCUDA, CurrentDevice(self)};
  EnsureReady(self, device.device_id);
  return device;
}

// ---- Methods --------------------------------------------------------------------------------

enum Parameter {
  kBindings,
  kWorkspace,
  kStream,
  kSymbols,
  kOverrideUids,
  kOverrideShapes,
  kOverrideStrides,
  kNumParameters
};

const char* const kParameterNames[kNumParameters] = {
    "bindings",      "workspace",       "stream",           "symbols",
    "override_uids", "override_shapes", "override_strides",
};

// Interned, so that a keyword of the caller's code is found by comparing pointers.
PyObject* const* ParameterNames() {
  static PyObject* names[kNumParameters] = {};
  if (names[0] == nullptr) {
    for (int i = kNumParameters - 1; i >= 0; --i) {
      names[i] = PyUnicode_InternFromString(kParameterNames[i]);
    }
  }
  return names;
}

void ParseArguments(const char* function, PyObject* const* args, Py_ssize_t count,
                    PyObject* keywords, PyObject** out) {
  if (count > kNumParameters) {
    PyErr_Format(PyExc_TypeError, "%s: got %zd arguments, want at most %d", function, count,
                 static_cast<int>(kNumParameters));
    throw PythonErrorSet{};
  }
  for (Py_ssize_t i = 0; i < count; ++i) out[i] = args[i];
  Py_ssize_t num_keywords = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  PyObject* const* names = ParameterNames();
  for (Py_ssize_t k = 0; k < num_keywords; ++k) {
    PyObject* keyword = PyTuple_GET_ITEM(keywords, k);
    int found = -1;
    for (int i = 0; i < kNumParameters && found < 0; ++i) {
      if (keyword == names[i]) found = i;
    }
    for (int i = 0; i < kNumParameters && found < 0; ++i) {
      if (PyUnicode_Compare(keyword, names[i]) == 0) found = i;
    }
    if (found < 0 || out[found] != nullptr) {
      PyErr_Format(PyExc_TypeError, "%s: %s argument %R", function,
                   found < 0 ? "unknown" : "repeated", keyword);
      throw PythonErrorSet{};
    }
    out[found] = args[count + k];
  }
  if (out[kBindings] == nullptr) {
    PyErr_Format(PyExc_TypeError, "%s: argument 'bindings' is missing", function);
    throw PythonErrorSet{};
  }
}

void Gather(const PlanObject* self, PyObject* const* arguments, Gathered* out) {
  auto* buffers = reinterpret_cast<Buffer*>(out->inline_buffers);
  if (self->uids.size() > Gathered::kInline) {
    out->more.resize(self->uids.size());
    buffers = out->more.data();
  } else {
    std::uninitialized_fill_n(buffers, self->uids.size(), Buffer{});
  }
  GatherBindings(self, arguments[kBindings], buffers, &out->pins);
  if (arguments[kWorkspace] != nullptr) {
    DescribeBuffer(arguments[kWorkspace], "workspace", &out->pins, &out->workspace);
  }
  out->call.buffers = buffers;
  out->call.workspace = &out->workspace;
  out->call.symbols = out->symbols;
  out->call.num_symbols = GatherSymbols(self, arguments[kSymbols], out->symbols);
  GatherOverrides(self, arguments[kOverrideUids], arguments[kOverrideShapes],
                  arguments[kOverrideStrides], &out->overrides);
  out->call.overrides = out->overrides.data();
  out->call.num_overrides = static_cast<int>(out->overrides.size());
}

PyObject* Execute(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return Guarded<PyObject*>(nullptr, [&]() -> PyObject* {
    PlanObject* self = Self(object);
    PyObject* arguments[kNumParameters] = {};
    ParseArguments("execute", args, count, keywords, arguments);
    if (!self->has_kernels) {
      throw LaunchFailure("this plan was made without kernels and cannot be executed");
    }
    Gathered gathered;
    Gather(self, arguments, &gathered);
    void* stream = StreamHandle(arguments[kStream]);
    DLDevice device = FindCallDevice(self, gathered.call);
    Frame frame(self->plan->table());
    self->plan->Resolve(gathered.call, device, &frame);
    if (self->plan->table().cuda) {
      self->plan->Run(&frame, stream);  // microseconds: not worth giving up the GIL
    } else {
      py::gil_scoped_release release;
      self->plan->Run(&frame, nullptr);
    }
    Py_RETURN_NONE;
  });
}

py::list IntegerList(const int64_t* values, int count) {
  py::list out;
  for (int i = 0; i < count; ++i) out.append(values[i]);
  return out;
}

py::dict DescribeView(const DLTensor& view) {
  py::dict out;
  out["address"] = reinterpret_cast<uintptr_t>(view.data);
  out["dtype"] = Describe(view.dtype);
  out["dim"] = IntegerList(view.shape, view.ndim);
  out["stride"] = IntegerList(view.strides, view.ndim);
  return out;
}

py::dict DescribeCall(const Plan& plan, Frame* frame) {
  const Table& table = plan.table();
  const Branch& branch = table.branches[frame->branch];
  py::dict symbols;
  for (size_t i = 0; i < table.symbols.size(); ++i) {
    symbols[table.symbol_names[i].c_str()] = frame->symbols[i];
  }
  py::dict operands;
  for (size_t i = 0; i < table.operands.size(); ++i) {
    const Operand& operand = table.operands[i];
    py::dict item;
    if (operand.kind == Operand::Kind::kScalar) {
      if (operand.dtype->is_float()) {
        item["value"] = frame->scalars[i].number;
      } else {
        item["value"] = frame->scalars[i].integer;
      }
    } else {
      item["present"] = frame->slots[i].present;
      item["address"] = reinterpret_cast<uintptr_t>(frame->slots[i].data);
      item["nbytes"] = frame->slots[i].nbytes;
      item["dim"] = IntegerList(frame->dims + operand.base, operand.rank);
      item["stride"] = IntegerList(frame->strides + operand.base, operand.rank);
    }
    operands[py::int_(operand.uid)] = item;
  }
  py::list steps;
  for (const Step& step : branch.steps) {
    py::dict item;
    if (step.kind == Step::Kind::kFill) {
      item["step"] = "fill";
      item["bytes"] = table.pool.Eval(step.bytes, frame->env());
    } else {
      item["step"] = "kernel";
      item["kernel"] = step.kernel;
      plan.BuildArgs(branch, step, true, frame);
      py::list args;
      for (size_t i = 0; i < step.args.size(); ++i) {
        const FfiAny& arg = frame->args[i];
        if (arg.type_index == kFfiTensorPtr) {
          args.append(DescribeView(*static_cast<const DLTensor*>(arg.v_ptr)));
        } else if (arg.type_index == kFfiInt) {
          args.append(arg.v_int64);
        } else if (arg.type_index == kFfiFloat) {
          args.append(arg.v_float64);
        } else {
          args.append(py::none());
        }
      }
      item["args"] = args;
    }
    steps.append(item);
  }
  py::dict out;
  out["branch"] = branch.name;
  out["symbols"] = symbols;
  out["operands"] = operands;
  out["workspace_bytes"] = frame->workspace_bytes;
  out["steps"] = steps;
  return out;
}

PyObject* Resolve(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  return Guarded<PyObject*>(nullptr, [&]() -> PyObject* {
    PlanObject* self = Self(object);
    PyObject* arguments[kNumParameters] = {};
    ParseArguments("resolve", args, count, keywords, arguments);
    Gathered gathered;
    Gather(self, arguments, &gathered);
    // Without a workspace the slices are described from address 0 on.
    if (gathered.workspace.kind == Buffer::Kind::kAbsent) gathered.call.workspace = nullptr;
    DLDevice device = FindCallDevice(self, gathered.call);
    Frame frame(self->plan->table());
    self->plan->Resolve(gathered.call, device, &frame);
    return DescribeCall(*self->plan, &frame).release().ptr();
  });
}

PyObject* Prepare(PyObject* object, PyObject* argument) {
  return Guarded<PyObject*>(nullptr, [&]() -> PyObject* {
    PlanObject* self = Self(object);
    if (!self->plan->table().cuda) Py_RETURN_NONE;
    if (!self->has_kernels) {
      throw LaunchFailure("this plan was made without kernels and cannot be prepared");
    }
    cuda::RefuseAfterFork();
    int device = 0;
    if (argument == Py_None) {
      device = CurrentDevice(self);
    } else {
      device = static_cast<int>(PyLong_AsLong(argument));
      if (device == -1 && PyErr_Occurred() != nullptr) throw PythonErrorSet{};
    }
    EnsureReady(self, device);
    self->plan->Prepare(device);
    Py_RETURN_NONE;
  });
}

PyObject* WorkspaceBytes(PyObject* object, PyObject* args, PyObject* kwargs) {
  return Guarded<PyObject*>(nullptr, [&]() -> PyObject* {
    static const char* names[] = {"symbols", nullptr};
    PyObject* symbols = Py_None;
    if (PyArg_ParseTupleAndKeywords(args, kwargs, "|O:workspace_bytes", const_cast<char**>(names),
                                    &symbols) == 0) {
      throw PythonErrorSet{};
    }
    const PlanObject* self = Self(object);
    SymbolValue values[kMaxSymbols];
    int count = GatherSymbols(self, symbols, values);
    // A device that the plan has met is taken as the one it runs on, else any GPU there may be.
    constexpr int64_t kMostSms = 1024;
    Interval sms{1, kMostSms};
    int64_t most = 0;
    for (int device = 0; device < cuda::kMaxDevices; ++device) {
      if (self->ready[device].load()) most = std::max<int64_t>(most, cuda::SmCount(device));
    }
    if (most > 0) sms = {1, most};
    return PyLong_FromLongLong(self->plan->WorkspaceBytes(values, count, sms));
  });
}

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

template <typename F>
PyCFunction AsFunction(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

PyMethodDef kMethods[] = {
    {"execute", AsFunction(Execute), METH_FASTCALL | METH_KEYWORDS,
     "execute($self, bindings, workspace=None, stream=None, symbols=None, override_uids=None, "
     "override_shapes=None, override_strides=None)\n--\n\n"
     "Check one call against the plan and launch its steps."},
    {"resolve", AsFunction(Resolve), METH_FASTCALL | METH_KEYWORDS,
     "resolve($self, bindings, workspace=None, stream=None, symbols=None, override_uids=None, "
     "override_shapes=None, override_strides=None)\n--\n\n"
     "Check one call against the plan and describe what execute would launch."},
    {"prepare", Prepare, METH_O,
     "prepare($self, device, /)\n--\n\nDo all lazy CUDA work of the plan on a device."},
    {"workspace_bytes", AsFunction(WorkspaceBytes), METH_VARARGS | METH_KEYWORDS,
     "workspace_bytes($self, symbols=None)\n--\n\nThe workspace that calls may need, in bytes."},
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
    {Py_tp_doc, const_cast<char*>("Plan(table, kernels=None, on_device=None)\n--\n\n"
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

}  // namespace cudnn_aot
