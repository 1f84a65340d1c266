#include "objects.h"

#include <cstring>
#include <deque>
#include <string>

#include "error.h"
#include "python_error.h"

namespace cudnn_aot {
namespace {

enum class Protocol : uint8_t {
  kNone,
  kExchange,        // __dlpack_c_exchange_api__: one C call
  kPyBuffer,        // numpy arrays, bytes, memoryview
  kDLPack,          // __dlpack__
  kCudaInterface,   // __cuda_array_interface__
  kArrayInterface,  // __array_interface__
};

struct TypeEntry {
  PyTypeObject* type;
  Protocol protocol;
  const DLPackExchangeApi* api;
};

// Interned once; looked up on types only.
PyObject* Name(const char* text) { return PyUnicode_InternFromString(text); }

bool HasAttribute(PyObject* object, const char* name) {
  PyObject* found = PyObject_GetAttrString(object, name);
  if (found == nullptr) {
    PyErr_Clear();
    return false;
  }
  Py_DECREF(found);
  return true;
}

const DLPackExchangeApi* ExchangeApiOf(PyTypeObject* type) {
  PyObject* capsule =
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (capsule == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  void* found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  Py_DECREF(capsule);
  if (found == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  // A newer producer chains the tables of older major versions.
  auto* header = static_cast<DLPackExchangeHeader*>(found);
  while (header != nullptr && header->version.major != 1) header = header->prev_api;
  return reinterpret_cast<const DLPackExchangeApi*>(header);
}

TypeEntry Inspect(PyTypeObject* type) {
  if (const DLPackExchangeApi* api = ExchangeApiOf(type)) return {type, Protocol::kExchange, api};
  auto* object = reinterpret_cast<PyObject*>(type);
  if (type->tp_as_buffer != nullptr && type->tp_as_buffer->bf_getbuffer != nullptr) {
    return {type, Protocol::kPyBuffer, nullptr};
  }
  if (HasAttribute(object, "__dlpack__")) return {type, Protocol::kDLPack, nullptr};
  if (HasAttribute(object, "__cuda_array_interface__")) {
    return {type, Protocol::kCudaInterface, nullptr};
  }
  if (HasAttribute(object, "__array_interface__")) {
    return {type, Protocol::kArrayInterface, nullptr};
  }
  return {type, Protocol::kNone, nullptr};
}

const TypeEntry& EntryOf(PyTypeObject* type) {
  // Under the GIL; types are few and kept alive, so an address names one type for good.
  static auto* entries = new std::deque<TypeEntry>();
  for (const TypeEntry& entry : *entries) {
    if (entry.type == type) return entry;
  }
  TypeEntry entry = Inspect(type);
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  entries->push_back(entry);
  return entries->back();
}

void FromDLTensor(const DLTensor& tensor, Buffer* out) {
  out->kind = Buffer::Kind::kTensor;
  out->data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  out->device = tensor.device;
  out->dtype = tensor.dtype;
  out->ndim = tensor.ndim;
  out->shape = tensor.shape;
  out->strides = tensor.strides;
}

[[noreturn]] void TypeFailure(const char* what, const std::string& message) {
  PyErr_Format(PyExc_TypeError, "%s: %s", what, message.c_str());
  throw PythonErrorSet{};
}

DLDataType DTypeOfFormat(const char* format, Py_ssize_t itemsize) {
  // struct-style codes; the width decides where C leaves it open.
  auto bits = static_cast<uint8_t>(itemsize * 8);
  const char* code = format == nullptr ? "B" : format;
  if (std::strchr("@=<", *code) != nullptr && *code != '\0') ++code;
  if (code[0] != '\0' && code[1] == '\0') {
    if (std::strchr("bhilqn", *code) != nullptr) return {kDLInt, bits, 1};
    if (std::strchr("BHILQNcP", *code) != nullptr) return {kDLUInt, bits, 1};
    if (std::strchr("efd", *code) != nullptr) return {kDLFloat, bits, 1};
    if (*code == '?') return {kDLBool, bits, 1};
  }
  return {kDLOpaqueHandle, bits, 1};
}

// "<f4", "|u1", "<V2": byte order, kind, bytes.
DLDataType DTypeOfTypestr(const char* typestr, const char* what) {
  if (std::strlen(typestr) < 3 || *typestr == '>') {
    TypeFailure(what, std::string("got typestr '") + typestr + "', want a little-endian one");
  }
  auto bits = static_cast<uint8_t>(std::strtol(typestr + 2, nullptr, 10) * 8);
  switch (typestr[1]) {
    case 'b':
      return {kDLBool, bits, 1};
    case 'i':
      return {kDLInt, bits, 1};
    case 'u':
      return {kDLUInt, bits, 1};
    case 'f':
      return {kDLFloat, bits, 1};
    case 'c':
      return {kDLComplex, bits, 1};
    default:
      return {kDLOpaqueHandle, bits, 1};  // 'V2' is how bfloat16 arrays call themselves
  }
}

// False when the object has no usable buffer view, without an error.
bool FromPyBuffer(PyObject* object, Pins* pins, Buffer* out) {
  Py_buffer* view = pins->NewView();
  if (PyObject_GetBuffer(object, view, PyBUF_STRIDED_RO | PyBUF_FORMAT) != 0) {
    pins->DropView();
    PyErr_Clear();
    return false;
  }
  out->kind = Buffer::Kind::kTensor;
  out->readonly = view->readonly != 0;
  out->data = static_cast<char*>(view->buf);
  out->device = {kDLCPU, 0};
  out->dtype = DTypeOfFormat(view->format, view->itemsize);
  out->ndim = view->ndim;
  int64_t* axes = pins->NewAxes(2 * static_cast<size_t>(view->ndim));
  for (int axis = 0; axis < view->ndim; ++axis) {
    axes[axis] = view->shape[axis];
    if (view->strides == nullptr) continue;  // ctypes gives none, though they were asked for
    Py_ssize_t stride = view->strides[axis];
    if (view->itemsize == 0 || stride % view->itemsize != 0) {
      PyErr_SetString(PyExc_TypeError, "buffer strides are no multiple of its element size");
      throw PythonErrorSet{};
    }
    axes[view->ndim + axis] = stride / view->itemsize;
  }
  out->shape = axes;
  out->strides = view->strides == nullptr ? nullptr : axes + view->ndim;
  return true;
}

PyObject* Attribute(PyObject* object, const char* name) {
  PyObject* found = PyObject_GetAttrString(object, name);
  if (found == nullptr) throw PythonErrorSet{};
  return found;
}

// The NumPy and CUDA array interfaces are one dictionary but for the device.
void FromInterface(PyObject* object, const char* attribute, const char* what, Pins* pins,
                   Buffer* out) {
  PyObject* interface = Attribute(object, attribute);
  pins->Adopt(interface);
  if (!PyDict_Check(interface)) TypeFailure(what, std::string(attribute) + " is no dict");
  PyObject* shape = PyDict_GetItemString(interface, "shape");
  PyObject* typestr = PyDict_GetItemString(interface, "typestr");
  PyObject* data = PyDict_GetItemString(interface, "data");
  PyObject* strides = PyDict_GetItemString(interface, "strides");
  const char* type = typestr == nullptr ? nullptr : PyUnicode_AsUTF8(typestr);
  if (shape == nullptr || !PyTuple_Check(shape) || type == nullptr || data == nullptr ||
      !PyTuple_Check(data) || PyTuple_GET_SIZE(data) != 2) {
    PyErr_Clear();
    TypeFailure(what, std::string(attribute) + " lacks a usable shape, typestr or data");
  }
  bool cuda = std::strcmp(attribute, "__cuda_array_interface__") == 0;
  out->kind = Buffer::Kind::kTensor;
  out->device = {kDLCPU, 0};
  out->dtype = DTypeOfTypestr(type, what);
  out->data = static_cast<char*>(PyLong_AsVoidPtr(PyTuple_GET_ITEM(data, 0)));
  int readonly = PyObject_IsTrue(PyTuple_GET_ITEM(data, 1));
  if (readonly < 0 || PyErr_Occurred() != nullptr) throw PythonErrorSet{};
  out->readonly = readonly != 0;
  out->ndim = static_cast<int32_t>(PyTuple_GET_SIZE(shape));
  int64_t* axes = pins->NewAxes(2 * static_cast<size_t>(out->ndim));
  int64_t itemsize = out->dtype.bits / 8;
  bool strided = strides != nullptr && PyTuple_Check(strides) &&
                 PyTuple_GET_SIZE(strides) == PyTuple_GET_SIZE(shape);
  for (int axis = 0; axis < out->ndim; ++axis) {
    axes[axis] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, axis));
    if (!strided) continue;
    int64_t bytes = PyLong_AsLongLong(PyTuple_GET_ITEM(strides, axis));
    if (itemsize == 0 || bytes % itemsize != 0) {
      TypeFailure(what, "strides are no multiple of the element size");
    }
    axes[out->ndim + axis] = bytes / itemsize;
  }
  if (PyErr_Occurred() != nullptr) throw PythonErrorSet{};
  out->shape = axes;
  out->strides = strided ? axes + out->ndim : nullptr;
  if (!cuda) return;
  // The interface does not say which device: ask the object, else take the call's.
  out->device = {kDLCUDA, kUnknownDevice};
  PyObject* device = PyObject_GetAttrString(object, "device");
  if (device == nullptr) {
    PyErr_Clear();
    return;
  }
  pins->Adopt(device);
  for (const char* name : {"id", "index", "device_id"}) {
    PyObject* id = PyObject_GetAttrString(device, name);
    if (id != nullptr && PyLong_Check(id)) {
      out->device.device_id = static_cast<int32_t>(PyLong_AsLong(id));
      Py_DECREF(id);
      return;
    }
    PyErr_Clear();
    Py_XDECREF(id);
  }
}

// Calls object.__dlpack__ without synchronisation: the caller's stream orders the work.
PyObject* ExportDLPack(PyObject* object, bool cuda) {
  static PyObject* const versioned_name = Name("max_version");
  static PyObject* const stream_name = Name("stream");
  static PyObject* const version = Py_BuildValue("(ii)", 1, 0);
  static PyObject* const no_sync = PyLong_FromLong(-1);
  PyObject* method = Attribute(object, "__dlpack__");
  PyObject* result = nullptr;
  for (bool with_version : {true, false}) {
    PyObject* kwargs = PyDict_New();
    PyObject* args = PyTuple_New(0);
    if (kwargs != nullptr && args != nullptr) {
      if (with_version) PyDict_SetItem(kwargs, versioned_name, version);
      if (cuda) PyDict_SetItem(kwargs, stream_name, no_sync);
      result = PyObject_Call(method, args, kwargs);
    }
    Py_XDECREF(kwargs);
    Py_XDECREF(args);
    // Producers older than DLPack 1.0 know no max_version.
    if (result != nullptr || !PyErr_ExceptionMatches(PyExc_TypeError) || !with_version) break;
    PyErr_Clear();
  }
  Py_DECREF(method);
  if (result == nullptr) throw PythonErrorSet{};
  return result;
}

void FromDLPack(PyObject* object, const char* what, Pins* pins, Buffer* out) {
  PyObject* device = PyObject_CallMethod(object, "__dlpack_device__", nullptr);
  if (device == nullptr) throw PythonErrorSet{};
  pins->Adopt(device);
  PyObject* type = PySequence_GetItem(device, 0);
  if (type == nullptr) throw PythonErrorSet{};
  pins->Adopt(type);
  long device_type = PyLong_AsLong(type);
  if (device_type == -1 && PyErr_Occurred() != nullptr) throw PythonErrorSet{};
  PyObject* capsule = ExportDLPack(object, device_type == kDLCUDA);
  pins->Adopt(capsule);  // its destructor releases the export after the call
  if (PyCapsule_IsValid(capsule, "dltensor_versioned") != 0) {
    auto* tensor =
        static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (tensor->version.major != 1) {
      TypeFailure(what, "got DLPack version " + std::to_string(tensor->version.major) + ", want 1");
    }
    FromDLTensor(tensor->dl_tensor, out);
    out->readonly = (tensor->flags & kDLFlagReadOnly) != 0;
  } else if (PyCapsule_IsValid(capsule, "dltensor") != 0) {
    auto* tensor = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
    FromDLTensor(tensor->dl_tensor, out);
  } else {
    TypeFailure(what, "__dlpack__ returned no DLPack capsule");
  }
}

void FromExchange(PyObject* object, const DLPackExchangeApi& api, Pins* pins, Buffer* out) {
  if (api.dltensor_from_py_object_no_sync != nullptr) {
    DLTensor tensor;
    if (api.dltensor_from_py_object_no_sync(object, &tensor) != 0) throw PythonErrorSet{};
    FromDLTensor(tensor, out);
    return;
  }
  DLManagedTensorVersioned* tensor = nullptr;
  if (api.managed_tensor_from_py_object_no_sync(object, &tensor) != 0) throw PythonErrorSet{};
  pins->Keep(tensor);
  FromDLTensor(tensor->dl_tensor, out);
  out->readonly = (tensor->flags & kDLFlagReadOnly) != 0;
}

bool IsPlainInt(PyObject* object) { return PyLong_Check(object) && !PyBool_Check(object); }

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

Pins::~Pins() {
  for (size_t i = 0; i < num_objects_; ++i) Py_DECREF(objects_[i]);
  for (PyObject* object : more_objects_) Py_DECREF(object);
  for (const auto& view : views_) PyBuffer_Release(view.get());
  for (DLManagedTensorVersioned* tensor : tensors_) {
    if (tensor->deleter != nullptr) tensor->deleter(tensor);
  }
}

void DescribeBuffer(PyObject* object, const char* what, Pins* pins, Buffer* out) {
  if (object == Py_None) return;
  pins->Keep(object);
  if (IsPlainInt(object)) {
    out->kind = Buffer::Kind::kAddress;
    out->data = static_cast<char*>(PyLong_AsVoidPtr(object));
    if (out->data == nullptr && PyErr_Occurred() != nullptr) throw PythonErrorSet{};
    return;
  }
  const TypeEntry& entry = EntryOf(Py_TYPE(object));
  switch (entry.protocol) {
    case Protocol::kExchange:
      return FromExchange(object, *entry.api, pins, out);
    case Protocol::kPyBuffer:
      if (FromPyBuffer(object, pins, out)) return;
      // NumPy has no buffer format for the element types that other packages add.
      if (HasAttribute(object, "__array_interface__")) {
        return FromInterface(object, "__array_interface__", what, pins, out);
      }
      break;
    case Protocol::kDLPack:
      return FromDLPack(object, what, pins, out);
    case Protocol::kCudaInterface:
      return FromInterface(object, "__cuda_array_interface__", what, pins, out);
    case Protocol::kArrayInterface:
      return FromInterface(object, "__array_interface__", what, pins, out);
    case Protocol::kNone:
      break;
  }
  // An instance may carry what its type does not.
  for (const char* attribute : {"__cuda_array_interface__", "__array_interface__"}) {
    if (HasAttribute(object, attribute)) return FromInterface(object, attribute, what, pins, out);
  }
  TypeFailure(what, std::string("got a ") + Py_TYPE(object)->tp_name +
                        ", want a tensor (DLPack, __cuda_array_interface__ or the buffer "
                        "protocol), an address or None");
}

void DescribeNumber(PyObject* object, const DType& dtype, const char* what, Pins* pins,
                    Buffer* out) {
  if (object == Py_None) return;
  out->kind = Buffer::Kind::kNumber;
  if (PyFloat_Check(object)) {
    out->number = PyFloat_AS_DOUBLE(object);
    return;
  }
  if (PyLong_Check(object)) {
    out->is_integer = true;
    out->integer = PyLong_AsLongLong(object);
    if (out->integer == -1 && PyErr_Occurred() != nullptr) throw PythonErrorSet{};
    out->number = static_cast<double>(out->integer);
    return;
  }
  Buffer buffer;
  DescribeBuffer(object, what, pins, &buffer);
  for (int axis = 0; axis < buffer.ndim; ++axis) {
    if (buffer.shape[axis] != 1) TypeFailure(what, "got a tensor of several elements, want one");
  }
  if (buffer.device.device_type != kDLCPU && buffer.device.device_type != kDLCUDAHost) {
    TypeFailure(what, "got a number in device memory, want it in host memory");
  }
  // Without a bfloat16 of its own, NumPy carries the bits as uint16 or as opaque bytes.
  bool bits = dtype.dl.code == kDLBfloat && buffer.dtype.code == kDLUInt && buffer.dtype.bits == 16;
  bool own = !bits && buffer.dtype.code != kDLOpaqueHandle;
  if (!own && buffer.dtype.bits != dtype.dl.bits) {
    TypeFailure(what, "got " + Describe(buffer.dtype) + ", want a number");
  }
  if (!LoadNumber(own ? buffer.dtype : dtype.dl, buffer.data, &out->number, &out->integer,
                  &out->is_integer)) {
    TypeFailure(what, "got " + Describe(buffer.dtype) + ", want a number");
  }
}

void* StreamHandle(PyObject* object) {
  if (object == nullptr || object == Py_None) return nullptr;
  auto handle_of = [](PyObject* number) {
    void* handle = PyLong_AsVoidPtr(number);
    if (handle == nullptr && PyErr_Occurred() != nullptr) throw PythonErrorSet{};
    return handle;
  };
  if (PyLong_Check(object)) return handle_of(object);
  for (const char* name : {"cuda_stream", "ptr"}) {
    PyObject* number = PyObject_GetAttrString(object, name);
    if (number == nullptr) {
      PyErr_Clear();
      continue;
    }
    if (PyLong_Check(number)) {
      void* handle = PyLong_AsVoidPtr(number);
      Py_DECREF(number);
      if (handle == nullptr && PyErr_Occurred() != nullptr) throw PythonErrorSet{};
      return handle;
    }
    Py_DECREF(number);
  }
  PyObject* pair = HasAttribute(object, "__cuda_stream__")
                       ? PyObject_CallMethod(object, "__cuda_stream__", nullptr)
                       : nullptr;
  if (pair == nullptr) {
    if (PyErr_Occurred() == nullptr) {
      PyErr_Format(PyExc_TypeError,
                   "stream: got a %s, want None, a handle or an object with cuda_stream or "
                   "__cuda_stream__",
                   Py_TYPE(object)->tp_name);
    }
    throw PythonErrorSet{};
  }
  PyObject* number = PySequence_GetItem(pair, 1);  // (version, handle)
  Py_DECREF(pair);
  if (number == nullptr) throw PythonErrorSet{};
  void* handle = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  if (handle == nullptr && PyErr_Occurred() != nullptr) throw PythonErrorSet{};
  return handle;
}

Value ValueOf(PyObject* object) { return ValueAt(object, "", 0); }

}  // namespace cudnn_aot
