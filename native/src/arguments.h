// The arguments of `execute` and `resolve` as a Call.
#pragma once

#include <Python.h>

#include <vector>

#include "objects.h"
#include "plan_object.h"

namespace cudnn_aot {

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

// What a call borrows from its arguments.
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

// All functions below throw PythonErrorSet after a Python error, and Refusal.

// Spreads the arguments of a vectorcall over `out`, which is all null; null stays for those that
// were not given.
void ParseArguments(const char* function, PyObject* const* args, Py_ssize_t count,
                    PyObject* keywords, PyObject** out);

// The keywords alone, of a call whose positional arguments are buffers.
void ParseKeywords(const char* function, PyObject* const* values, PyObject* keywords,
                   PyObject** out);

// `binding` is null for a plan that is not bound. What the caller binds comes before its scalars;
// other values of its symbols are refused ("symbol_range").
void Gather(PlanObject* self, const Binding* binding, PyObject* const* arguments, Gathered* out);

// The same with one object for each of `operands` in place of the bindings. The caller keeps them.
void Gather(const PlanObject* self, const Binding* binding, const std::vector<int>& operands,
            PyObject* const* objects, PyObject* const* arguments, Gathered* out);

// Values of a dict by symbol name, at most kMaxSymbols; returns their count.
int GatherSymbols(const PlanObject* self, PyObject* symbols, SymbolValue* out);

// The same of a call of a bound plan: its own values, and those given for further symbols.
int GatherSymbols(const PlanObject* self, const Binding* binding, PyObject* symbols,
                  SymbolValue* out);

}  // namespace cudnn_aot
