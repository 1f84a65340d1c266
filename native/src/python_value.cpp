#include "python_value.h"

#include "error.h"

namespace cudnn_aot {
namespace {

Value ValueAt(PyObject* object, const std::string& place, int depth);

[[noreturn]] void ValueFailure(const std::string& place, const std::string& message) {
  throw TableError(place.empty() ? message : place + ": " + message);
}

std::string Text(PyObject* object, const std::string& place) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &size);
  if (text == nullptr) {
    PyErr_Clear();
    ValueFailure(place, "got a string that is no text");
  }
  return std::string(text, static_cast<size_t>(size));
}

Value ValueAt(PyObject* object, const std::string& place, int depth) {
  constexpr int kMaxDepth = 128;
  if (depth > kMaxDepth) ValueFailure(place, "nested deeper than " + std::to_string(kMaxDepth));
  Value out;
  if (object == Py_None) return out;
  if (PyBool_Check(object)) {
    out.kind = Value::Kind::kBool;
    out.boolean = object == Py_True;
  } else if (PyLong_Check(object)) {
    out.kind = Value::Kind::kInt;
    out.integer = PyLong_AsLongLong(object);
    if (out.integer == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      ValueFailure(place, "got an integer that does not fit int64");
    }
  } else if (PyFloat_Check(object)) {
    out.kind = Value::Kind::kFloat;
    out.number = PyFloat_AS_DOUBLE(object);
  } else if (PyUnicode_Check(object)) {
    out.kind = Value::Kind::kString;
    out.string = Text(object, place);
  } else if (PyDict_Check(object)) {
    out.kind = Value::Kind::kObject;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(object, &at, &key, &value) != 0) {
      if (!PyUnicode_Check(key)) ValueFailure(place, "got a field name that is no string");
      std::string name = Text(key, place);
      out.items.push_back(ValueAt(value, place.empty() ? name : place + "." + name, depth + 1));
      out.keys.push_back(std::move(name));
    }
  } else if (PyList_Check(object) || PyTuple_Check(object)) {
    out.kind = Value::Kind::kList;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(object);
    for (Py_ssize_t i = 0; i < count; ++i) {
      out.items.push_back(ValueAt(PySequence_Fast_GET_ITEM(object, i),
                                  place + "[" + std::to_string(i) + "]", depth + 1));
    }
  } else {
    ValueFailure(place, std::string("got a ") + Py_TYPE(object)->tp_name +
                            ", want null, a boolean, a number, a string, a list or an object");
  }
  return out;
}

}  // namespace

Value ValueOf(PyObject* object) { return ValueAt(object, "", 0); }

}  // namespace cudnn_aot
