#include "arguments.h"

#include <algorithm>
#include <memory>
#include <string>

#include "error.h"
#include "numbers.h"
#include "python_error.h"
#include "symbols.h"

namespace cudnn_aot {
namespace {

[[noreturn]] void RefuseCall(const char* rule, const std::string& message) {
  throw Refusal(rule, Refusal::kNoOperand, message);
}

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

void Describe(const PlanObject* self, size_t index, PyObject* object, Buffer* buffers, Pins* pins) {
  const Operand& operand = self->plan->table().operands[index];
  Role role{self->labels[index].c_str(), operand.uid};
  if (operand.kind == Operand::Kind::kScalar) {
    DescribeNumber(object, *operand.dtype, role, pins, &buffers[index]);
  } else {
    DescribeBuffer(object, role, pins, &buffers[index]);
  }
}

// Keys that are no uid: names of operands, and None, which callers use for "not this time".
void DescribeNamed(const PlanObject* self, PyObject* bindings, Buffer* buffers, Pins* pins) {
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
    int found = FindNamed(self->plan->table(), name);
    if (buffers[found].kind == Buffer::Kind::kAbsent) {
      pins->Keep(object);
      Describe(self, static_cast<size_t>(found), object, buffers, pins);
    }
  }
}

// Whether the dict has the keys that the last one had, in their order: then its values are known
// without a look-up. They are kept alive, since describing one may run Python code.
bool TakeKnownKeys(const PlanObject* self, PyObject* bindings, PyObject** values, Pins* pins) {
  size_t count = self->keys.size();
  if (count == 0 || static_cast<size_t>(PyDict_GET_SIZE(bindings)) != count) return false;
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    if (PyDict_Next(bindings, &at, &key, &value) == 0 || key != self->keys[i]) return false;
    values[self->key_operands[i]] = value;
  }
  for (size_t i = 0; i < count; ++i) pins->Keep(values[self->key_operands[i]]);
  return true;
}

// Remembers the keys of a dict whose keys are all uids.
void RememberKeys(PlanObject* self, PyObject* bindings) {
  for (PyObject* key : self->keys) Py_DECREF(key);
  self->keys.clear();
  self->key_operands.clear();
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t at = 0;
  while (PyDict_Next(bindings, &at, &key, &value) != 0) {
    int64_t uid = 0;  // of another type a key may claim to be equal and be something else later
    int operand = PyLong_CheckExact(key) && ReadInteger(key, &uid)
                      ? self->plan->table().FindOperand(uid)
                      : -1;
    if (operand < 0) break;
    Py_INCREF(key);
    self->keys.push_back(key);
    self->key_operands.push_back(operand);
  }
  if (static_cast<Py_ssize_t>(self->keys.size()) == PyDict_GET_SIZE(bindings)) return;
  for (PyObject* kept : self->keys) Py_DECREF(kept);
  self->keys.clear();
  self->key_operands.clear();
}

void GatherDict(PlanObject* self, PyObject* bindings, Buffer* buffers, Pins* pins) {
  constexpr size_t kInline = 16;
  size_t count = self->uids.size();
  if (count <= kInline) {
    PyObject* values[kInline] = {};
    if (TakeKnownKeys(self, bindings, values, pins)) {
      for (size_t i = 0; i < count; ++i) {
        if (values[i] != nullptr) Describe(self, i, values[i], buffers, pins);
      }
      return;
    }
  }
  Py_ssize_t found = 0;
  for (size_t i = 0; i < count; ++i) {
    PyObject* object = PyDict_GetItemWithError(bindings, self->uids[i]);
    if (object == nullptr) {
      if (PyErr_Occurred() != nullptr) throw PythonErrorSet{};
      continue;
    }
    ++found;
    pins->Keep(object);
    Describe(self, i, object, buffers, pins);
  }
  if (found != PyDict_GET_SIZE(bindings)) return DescribeNamed(self, bindings, buffers, pins);
  if (count <= kInline) RememberKeys(self, bindings);
}

void GatherBindings(PlanObject* self, const std::vector<int>& without_defaults, PyObject* bindings,
                    Buffer* buffers, Pins* pins) {
  if (PyDict_Check(bindings)) return GatherDict(self, bindings, buffers, pins);
  if (!PyList_Check(bindings) && !PyTuple_Check(bindings)) {
    PyErr_Format(PyExc_TypeError,
                 "bindings: got a %s, want a dict of uids or a list in ascending uid order",
                 Py_TYPE(bindings)->tp_name);
    throw PythonErrorSet{};
  }
  size_t count = self->uids.size();
  auto given = static_cast<size_t>(PySequence_Fast_GET_SIZE(bindings));
  bool shorter = given != count && given == without_defaults.size();
  if (given != count && !shorter) {
    std::string want = std::to_string(count);
    if (without_defaults.size() != count) {
      want += " or, without the scalars that have a default, " +
              std::to_string(without_defaults.size());
    }
    RefuseCall("presence", "got " + std::to_string(given) + " buffers, want " + want +
                               ", in ascending uid order");
  }
  for (size_t i = 0; i < given; ++i) {
    size_t operand = shorter ? static_cast<size_t>(without_defaults[i]) : i;
    // Read again each time: describing an object may run Python code.
    if (i >= static_cast<size_t>(PySequence_Fast_GET_SIZE(bindings))) break;
    PyObject* object = PySequence_Fast_GET_ITEM(bindings, static_cast<Py_ssize_t>(i));
    pins->Keep(object);
    Describe(self, operand, object, buffers, pins);
  }
}

// The items of a sequence, kept alive by `pins`.
std::vector<PyObject*> Items(PyObject* object, const std::string& place, const char* of,
                             Pins* pins) {
  PyObject* sequence = PyUnicode_Check(object) ? nullptr : PySequence_Tuple(object);
  if (sequence == nullptr) {
    if (PyErr_Occurred() != nullptr && !PyErr_ExceptionMatches(PyExc_TypeError)) {
      throw PythonErrorSet{};
    }
    PyErr_Clear();
    RefuseCall("override", place + ": got " + Shown(object) + ", want a sequence of " + of);
  }
  pins->Adopt(sequence);
  PyObject** items = &PyTuple_GET_ITEM(sequence, 0);
  return std::vector<PyObject*>(items, items + PyTuple_GET_SIZE(sequence));
}

std::vector<int64_t> Integers(PyObject* object, const std::string& place, Pins* pins) {
  std::vector<int64_t> out;
  for (PyObject* item : Items(object, place, "integers", pins)) {
    if (!ReadInteger(item, &out.emplace_back())) {
      RefuseCall("override", place + ": got " + Shown(item) + ", want an integer that fits int64");
    }
  }
  return out;
}

void GatherOverrides(const PlanObject* self, PyObject* uids, PyObject* shapes, PyObject* strides,
                     Pins* pins, std::vector<Override>* out) {
  auto given = [](PyObject* object) { return object != nullptr && object != Py_None; };
  if (!given(uids) && !given(shapes) && !given(strides)) return;
  if (!given(uids) || !given(shapes) || !given(strides)) {
    RefuseCall("override",
               "got some of override_uids, override_shapes and override_strides, want "
               "all three or none");
  }
  std::vector<int64_t> ids = Integers(uids, "override_uids", pins);
  std::vector<PyObject*> all_shapes = Items(shapes, "override_shapes", "shapes", pins);
  std::vector<PyObject*> all_strides = Items(strides, "override_strides", "strides", pins);
  if (ids.size() != all_shapes.size() || ids.size() != all_strides.size()) {
    RefuseCall("override", "got " + std::to_string(ids.size()) + " override_uids, " +
                               std::to_string(all_shapes.size()) + " override_shapes and " +
                               std::to_string(all_strides.size()) +
                               " override_strides, want three of one length");
  }
  const Table& table = self->plan->table();
  for (size_t i = 0; i < ids.size(); ++i) {
    int operand = table.FindOperand(ids[i]);
    if (operand < 0 || table.operands[operand].kind == Operand::Kind::kScalar) {
      RefuseCall("override", "got uid " + std::to_string(ids[i]) +
                                 " in override_uids, want that of a tensor operand");
    }
    if (std::find(ids.begin(), ids.begin() + i, ids[i]) != ids.begin() + i) {
      RefuseCall("override",
                 "got uid " + std::to_string(ids[i]) + " twice in override_uids, want each once");
    }
    std::string index = "[" + std::to_string(i) + "]";
    Override item{operand, Integers(all_shapes[i], "override_shapes" + index, pins),
                  Integers(all_strides[i], "override_strides" + index, pins)};
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

}  // namespace

void ParseKeywords(const char* function, PyObject* const* values, PyObject* keywords,
                   PyObject** out) {
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
    out[found] = values[k];
  }
}

void ParseArguments(const char* function, PyObject* const* args, Py_ssize_t count,
                    PyObject* keywords, PyObject** out) {
  if (count > kNumParameters) {
    PyErr_Format(PyExc_TypeError, "%s: got %zd arguments, want at most %d", function, count,
                 static_cast<int>(kNumParameters));
    throw PythonErrorSet{};
  }
  for (Py_ssize_t i = 0; i < count; ++i) out[i] = args[i];
  ParseKeywords(function, args + count, keywords, out);
  if (out[kBindings] == nullptr) {
    PyErr_Format(PyExc_TypeError, "%s: argument 'bindings' is missing", function);
    throw PythonErrorSet{};
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
    if (symbol < 0 || count == kMaxSymbols) {  // keys that claim to differ may name one symbol
      PyErr_Clear();
      RefuseSymbol(table, Shown(key));
    }
    out[count].symbol = symbol;
    if (!ReadInteger(value, &out[count].value)) {
      const Symbol& declared = table.symbols[symbol];
      RefuseCall("symbol_range", "symbol '" + declared.name + "': got " + Shown(value) +
                                     ", want an integer from " + std::to_string(declared.min) +
                                     " to " + std::to_string(declared.max));
    }
    ++count;
  }
  return count;
}

int GatherSymbols(const PlanObject* self, const Binding* binding, PyObject* symbols,
                  SymbolValue* out) {
  if (binding == nullptr) return GatherSymbols(self, symbols, out);
  auto bound = static_cast<int>(binding->symbols.size());
  std::copy_n(binding->symbols.data(), bound, out);
  if (symbols == nullptr || symbols == Py_None) return bound;
  SymbolValue given[kMaxSymbols];
  int count = GatherSymbols(self, symbols, given);
  int known = bound;
  for (int i = 0; i < count; ++i) {
    const SymbolValue* own = std::find_if(
        out, out + bound, [&](const SymbolValue& v) { return v.symbol == given[i].symbol; });
    if (own == out + bound) {
      if (known < kMaxSymbols) out[known++] = given[i];
    } else if (own->value != given[i].value) {
      RefuseCall("symbol_range", "symbol '" + self->plan->table().symbols[own->symbol].name +
                                     "': got " + std::to_string(given[i].value) + ", want " +
                                     std::to_string(own->value) + ", to which the plan is bound");
    }
  }
  return known;
}

namespace {

Buffer* MakeRoom(const PlanObject* self, Gathered* out) {
  size_t count = self->uids.size();
  if (count > Gathered::kInline) {
    out->more.resize(count);
    return out->more.data();
  }
  auto* buffers = reinterpret_cast<Buffer*>(out->inline_buffers);
  std::uninitialized_fill_n(buffers, count, Buffer{});
  return buffers;
}

// All that is said of a call beside its buffers.
void GatherRest(const PlanObject* self, const Binding* binding, PyObject* const* arguments,
                Buffer* buffers, Gathered* out) {
  if (binding != nullptr) {
    for (const auto& [operand, number] : binding->scalars) {
      if (buffers[operand].kind == Buffer::Kind::kAbsent) buffers[operand] = number;
    }
  }
  if (arguments[kWorkspace] != nullptr) {
    DescribeBuffer(arguments[kWorkspace], {"workspace"}, &out->pins, &out->workspace);
  }
  out->call.buffers = buffers;
  out->call.workspace = &out->workspace;
  out->call.symbols = out->symbols;
  out->call.num_symbols = GatherSymbols(self, binding, arguments[kSymbols], out->symbols);
  GatherOverrides(self, arguments[kOverrideUids], arguments[kOverrideShapes],
                  arguments[kOverrideStrides], &out->pins, &out->overrides);
  out->call.overrides = out->overrides.data();
  out->call.num_overrides = static_cast<int>(out->overrides.size());
}

}  // namespace

void Gather(PlanObject* self, const Binding* binding, PyObject* const* arguments, Gathered* out) {
  Buffer* buffers = MakeRoom(self, out);
  const auto& needed = binding == nullptr ? self->without_defaults : binding->without_defaults;
  GatherBindings(self, needed, arguments[kBindings], buffers, &out->pins);
  GatherRest(self, binding, arguments, buffers, out);
}

void Gather(const PlanObject* self, const Binding* binding, const std::vector<int>& operands,
            PyObject* const* objects, PyObject* const* arguments, Gathered* out) {
  Buffer* buffers = MakeRoom(self, out);
  for (size_t i = 0; i < operands.size(); ++i) {
    Describe(self, static_cast<size_t>(operands[i]), objects[i], buffers, &out->pins);
  }
  GatherRest(self, binding, arguments, buffers, out);
}

}  // namespace cudnn_aot
