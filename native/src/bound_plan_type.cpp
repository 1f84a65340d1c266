#include "bound_plan_type.h"

#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "caller_type.h"
#include "error.h"
#include "numbers.h"
#include "plan_type.h"
#include "python_error.h"
#include "symbols.h"

namespace cudnn_aot {
namespace {

PyTypeObject* bound_plan_type = nullptr;

BoundPlanObject* Bound(PyObject* self) { return reinterpret_cast<BoundPlanObject*>(self); }

// The scalars of a dict by uid.
void BindScalars(const PlanObject* plan, PyObject* scalars, Binding* out) {
  const auto& operands = plan->plan->table().operands;
  Pins pins;
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t at = 0;
  while (PyDict_Next(scalars, &at, &key, &value) != 0) {
    int64_t uid = 0;
    int found = ReadInteger(key, &uid) ? plan->plan->table().FindOperand(uid) : -1;
    if (found < 0 || operands[found].kind != Operand::Kind::kScalar) {
      throw Refusal("name", Refusal::kNoOperand,
                    "scalars: got " + Shown(key) + ", want the uid of a pass-by-value operand");
    }
    const Operand& operand = operands[found];
    Buffer number;
    pins.Keep(value);
    DescribeNumber(value, *operand.dtype, {plan->labels[found].c_str(), uid}, &pins, &number);
    Scalar ignored;
    BindScalar(operand, number, &ignored);
    if (number.kind == Buffer::Kind::kNumber) out->scalars.emplace_back(found, number);
  }
}

void Construct(BoundPlanObject* self, PyObject* symbols, PyObject* scalars) {
  const Table& table = self->plan->plan->table();
  Binding& binding = self->binding;
  SymbolValue values[kMaxSymbols];
  int count = GatherSymbols(self->plan, symbols, values);
  for (int i = 0; i < count; ++i) {
    CheckRange(table.symbols[values[i].symbol], values[i].value, nullptr);
  }
  binding.symbols.assign(values, values + count);
  if (scalars != Py_None) {
    if (!PyDict_Check(scalars)) {
      PyErr_Format(PyExc_TypeError, "scalars: got a %s, want a dict", Py_TYPE(scalars)->tp_name);
      throw PythonErrorSet{};
    }
    BindScalars(self->plan, scalars, &binding);
  }
  for (int operand : self->plan->without_defaults) {
    bool has_value = false;
    for (const auto& scalar : binding.scalars) has_value |= scalar.first == size_t(operand);
    if (!has_value) binding.without_defaults.push_back(operand);
  }
}

void Dealloc(PyObject* object) {
  BoundPlanObject* self = Bound(object);
  PyTypeObject* type = Py_TYPE(object);
  Py_DECREF(reinterpret_cast<PyObject*>(self->plan));
  self->binding.~Binding();
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* ExecuteBound(PyObject* self, PyObject* const* args, Py_ssize_t count,
                       PyObject* keywords) {
  return Execute(Bound(self)->plan, &Bound(self)->binding, args, count, keywords);
}

PyObject* ResolveBound(PyObject* self, PyObject* const* args, Py_ssize_t count,
                       PyObject* keywords) {
  return Resolve(Bound(self)->plan, &Bound(self)->binding, args, count, keywords);
}

PyObject* PrepareBound(PyObject* self, PyObject* device) {
  return Prepare(Bound(self)->plan, device);
}

PyObject* WorkspaceBytesOfBound(PyObject* self, PyObject* args, PyObject* kwargs) {
  return WorkspaceBytes(Bound(self)->plan, &Bound(self)->binding, args, kwargs);
}

PyObject* CallerOfBound(PyObject* self, PyObject* uids) {
  BoundPlanObject* bound = Bound(self);
  return Guarded<PyObject*>(nullptr,
                            [&] { return MakeCaller(self, bound->plan, &bound->binding, uids); });
}

PyObject* LauncherOfBound(PyObject* self, PyObject* const* args, Py_ssize_t count,
                          PyObject* keywords) {
  BoundPlanObject* bound = Bound(self);
  return Guarded<PyObject*>(
      nullptr, [&] { return MakeLauncher(bound->plan, &bound->binding, args, count, keywords); });
}

PyMethodDef kMethods[] = {
    {"caller", CallerOfBound, METH_O, kCallerDoc},
    {"launcher", AsFunction(LauncherOfBound), METH_FASTCALL | METH_KEYWORDS, kLauncherDoc},
    {"execute", AsFunction(ExecuteBound), METH_FASTCALL | METH_KEYWORDS, kExecuteDoc},
    {"resolve", AsFunction(ResolveBound), METH_FASTCALL | METH_KEYWORDS, kResolveDoc},
    {"prepare", PrepareBound, METH_O, kPrepareDoc},
    {"workspace_bytes", AsFunction(WorkspaceBytesOfBound), METH_VARARGS | METH_KEYWORDS,
     kWorkspaceBytesDoc},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot kSlots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
    {Py_tp_methods, kMethods},
    {Py_tp_doc, const_cast<char*>("A plan with values of its symbols and scalars.")},
    {0, nullptr},
};

PyType_Spec kSpec = {
    "cudnn_aot._native.BoundPlan", sizeof(BoundPlanObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, kSlots};

}  // namespace

PyObject* MakeBoundPlanType() {
  PyObject* type = PyType_FromSpec(&kSpec);
  if (type == nullptr) throw PythonErrorSet{};
  Py_INCREF(type);  // for the life of the process
  bound_plan_type = reinterpret_cast<PyTypeObject*>(type);
  return type;
}

PyObject* MakeBoundPlan(PlanObject* plan, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"symbols", "scalars", nullptr};
  PyObject* symbols = Py_None;
  PyObject* scalars = Py_None;
  if (PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:bind", const_cast<char**>(names), &symbols,
                                  &scalars) == 0) {
    throw PythonErrorSet{};
  }
  PyObject* object = bound_plan_type->tp_alloc(bound_plan_type, 0);
  if (object == nullptr) throw PythonErrorSet{};
  BoundPlanObject* self = Bound(object);
  new (&self->binding) Binding();
  Py_INCREF(reinterpret_cast<PyObject*>(plan));
  self->plan = plan;
  try {
    Construct(self, symbols, scalars);
  } catch (...) {
    Py_DECREF(object);
    throw;
  }
  return object;
}

}  // namespace cudnn_aot
