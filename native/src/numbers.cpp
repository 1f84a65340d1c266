#include "numbers.h"

#include "python_error.h"

namespace cudnn_aot {
namespace {

bool IsOverflowOrType() {
  return PyErr_ExceptionMatches(PyExc_OverflowError) != 0 ||
         PyErr_ExceptionMatches(PyExc_TypeError) != 0;
}

void* HandleOf(PyObject* number) {
  void* handle = PyLong_AsVoidPtr(number);
  if (handle == nullptr && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    RefuseObject("stream", {"stream"}, "got " + Shown(number), "a handle of 64 bits");
  }
  return handle;
}

// The attribute's integer, owned; null if there is none.
PyObject* IntegerAttribute(PyObject* object, const char* name) {
  PyObject* number = PyObject_GetAttrString(object, name);
  if (number == nullptr) {
    PyErr_Clear();
  } else if (!PyLong_Check(number)) {
    Py_DECREF(number);
    number = nullptr;
  }
  return number;
}

}  // namespace

std::string Shown(PyObject* object) {
  constexpr size_t kMost = 80;
  PyObject* shown = PyObject_Repr(object);
  const char* text = shown == nullptr ? nullptr : PyUnicode_AsUTF8(shown);
  std::string out;
  if (text == nullptr) {  // an integer of too many digits, a string that is no text
    PyErr_Clear();
    out = std::string("a ") + Py_TYPE(object)->tp_name;
  } else {
    out = text;
  }
  Py_XDECREF(shown);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  if (out.size() > kMost) {
    size_t end = kMost - 3;
    while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xC0) == 0x80) --end;
    out = out.substr(0, end) + "...";
  }
  return out;
}

bool ReadInteger(PyObject* object, int64_t* out) {
  *out = PyLong_AsLongLong(object);
  if (*out != -1 || PyErr_Occurred() == nullptr) return true;
  if (!IsOverflowOrType()) throw PythonErrorSet{};
  PyErr_Clear();
  return false;
}

void DescribeNumber(PyObject* object, const DType& dtype, const Role& role, Pins* pins,
                    Buffer* out) {
  if (object == Py_None) return;
  out->kind = Buffer::Kind::kNumber;
  if (PyFloat_Check(object)) {
    out->number = PyFloat_AS_DOUBLE(object);
    return;
  }
  auto refuse = [&](const char* rule, const std::string& got) {
    RefuseObject(rule, role, got, std::string("a number for ") + dtype.name);
  };
  if (PyLong_Check(object)) {
    out->is_integer = ReadInteger(object, &out->integer);
    if (out->is_integer) {
      out->number = static_cast<double>(out->integer);
      return;
    }
    out->number = dtype.is_float() ? PyLong_AsDouble(object) : -1;
    if (out->number == -1) {  // that is no integer beyond int64
      PyErr_Clear();
      refuse("dtype", "got " + Shown(object));
    }
    return;
  }
  Buffer buffer;
  DescribeBuffer(object, role, pins, &buffer);
  LoadElement(buffer, dtype, role, out);
}

void* StreamHandle(PyObject* object) {
  if (object == nullptr || object == Py_None) return nullptr;
  if (PyLong_Check(object)) return HandleOf(object);
  Pins pins;
  for (const char* name : {"cuda_stream", "ptr"}) {
    if (PyObject* number = IntegerAttribute(object, name)) {
      pins.Adopt(number);
      return HandleOf(number);
    }
  }
  PyObject* method = PyObject_GetAttrString(object, "__cuda_stream__");
  if (method == nullptr) {
    PyErr_Format(PyExc_TypeError,
                 "stream: got a %s, want None, a handle or an object with cuda_stream or "
                 "__cuda_stream__",
                 Py_TYPE(object)->tp_name);
    throw PythonErrorSet{};
  }
  pins.Adopt(method);
  PyObject* pair = PyObject_CallNoArgs(method);
  if (pair == nullptr) throw PythonErrorSet{};
  pins.Adopt(pair);
  if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2 ||
      !PyLong_Check(PyTuple_GET_ITEM(pair, 1))) {
    RefuseObject("stream", {"stream"}, "__cuda_stream__ gave " + Shown(pair),
                 "a version and a handle");
  }
  return HandleOf(PyTuple_GET_ITEM(pair, 1));
}

}  // namespace cudnn_aot
