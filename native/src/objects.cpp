#include "objects.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>

#include "error.h"
#include "numbers.h"
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
  static const TypeEntry* last = nullptr;
  if (last != nullptr && last->type == type) return *last;
  for (const TypeEntry& entry : *entries) {
    if (entry.type == type) return *(last = &entry);
  }
  TypeEntry entry = Inspect(type);
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  entries->push_back(entry);
  return entries->back();
}

constexpr int64_t kMaxItemBytes = 1 << 12;

[[noreturn]] void RefuseFormat(const Role& role, const char* format, const char* want) {
  RefuseObject("dtype", role, std::string("got element format '") + format + "'", want);
}

DLDataType Opaque(int64_t bytes) { return {kDLOpaqueHandle, 8, static_cast<uint16_t>(bytes)}; }

// 8-bit floats of other packages call themselves 'f': no format tells them apart.
DLDataType Number(uint8_t code, int64_t bytes) {
  if (bytes > 16 || (code == kDLFloat && bytes == 1)) return Opaque(bytes);
  return {code, static_cast<uint8_t>(8 * bytes), 1};
}

// Whether a struct-style format has one of the codes anywhere but in the name of a field.
bool HasCode(const char* format, const char* codes) {
  bool in_name = false;
  for (; *format != '\0'; ++format) {
    if (*format == ':') in_name = !in_name;
    if (!in_name && std::strchr(codes, *format) != nullptr) return true;
  }
  return false;
}

DLDataType DTypeOfFormat(const char* format, Py_ssize_t itemsize, const Role& role) {
  // struct-style codes; the width decides where C leaves it open.
  const char* code = format == nullptr ? "B" : format;
  if (itemsize <= 0 || itemsize > kMaxItemBytes) {
    RefuseFormat(role, code, "elements of 1 to 4096 bytes");
  }
  if (itemsize > 1 && HasCode(code, ">!")) RefuseFormat(role, code, "little-endian elements");
  if (HasCode(code, "O")) RefuseFormat(role, code, "numbers, not objects");
  if (std::strchr("@=<>!|", *code) != nullptr && *code != '\0') ++code;
  if (code[0] == 'Z' && code[1] != '\0' && code[2] == '\0') return Number(kDLComplex, itemsize);
  if (code[0] != '\0' && code[1] == '\0') {
    if (std::strchr("bhilqn", *code) != nullptr) return Number(kDLInt, itemsize);
    if (std::strchr("BHILQNcP", *code) != nullptr) return Number(kDLUInt, itemsize);
    if (std::strchr("efdg", *code) != nullptr) return Number(kDLFloat, itemsize);
    if (*code == '?') return Number(kDLBool, itemsize);
  }
  return Opaque(itemsize);
}

// "<f4", "|u1", "<V2": byte order, kind, bytes.
DLDataType DTypeOfTypestr(const char* typestr, const Role& role) {
  char* end = nullptr;
  int64_t bytes = std::strlen(typestr) < 3 ? 0 : std::strtoll(typestr + 2, &end, 10);
  if (bytes <= 0 || bytes > kMaxItemBytes || *end != '\0') {
    RefuseFormat(role, typestr, "one such as '<f4'");
  }
  if (*typestr == '>' && bytes > 1) RefuseFormat(role, typestr, "little-endian elements");
  switch (typestr[1]) {
    case 'b':
      return Number(kDLBool, bytes);
    case 'i':
      return Number(kDLInt, bytes);
    case 'u':
      return Number(kDLUInt, bytes);
    case 'f':
      return Number(kDLFloat, bytes);
    case 'c':
      return Number(kDLComplex, bytes);
    case 'V':
      return Opaque(bytes);  // 'V2' is how bfloat16 arrays call themselves
    default:
      RefuseFormat(role, typestr, "numbers or plain bytes");
  }
}

int64_t StrideInElements(int64_t stride, int64_t itemsize, const Role& role) {
  if (stride % itemsize != 0) {
    RefuseObject("interface", role, "got a stride of " + std::to_string(stride) + " bytes",
                 "a multiple of the " + std::to_string(itemsize) + " bytes of an element");
  }
  return stride / itemsize;
}

// False when the object has no usable buffer view, without an error.
bool FromPyBuffer(PyObject* object, const Role& role, Pins* pins, Buffer* out) {
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
  out->dtype = DTypeOfFormat(view->format, view->itemsize, role);
  out->ndim = view->ndim;
  int64_t* axes = pins->NewAxes(2 * static_cast<size_t>(view->ndim));
  for (int axis = 0; axis < view->ndim; ++axis) {
    axes[axis] = view->shape[axis];
    if (view->strides == nullptr) continue;  // ctypes gives none, though they were asked for
    axes[view->ndim + axis] = StrideInElements(view->strides[axis], view->itemsize, role);
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

// Reads a tuple of integers of an array interface.
void ReadAxes(PyObject* tuple, const char* field, const Role& role, int64_t* out) {
  for (Py_ssize_t axis = 0; axis < PyTuple_GET_SIZE(tuple); ++axis) {
    if (!ReadInteger(PyTuple_GET_ITEM(tuple, axis), &out[axis])) {
      RefuseObject("interface", role, std::string("got ") + field + " " + Shown(tuple),
                   "integers that fit int64");
    }
  }
}

// The NumPy and CUDA array interfaces are one dictionary but for the device.
void FromInterface(PyObject* object, const char* attribute, const Role& role, Pins* pins,
                   Buffer* out) {
  PyObject* interface = Attribute(object, attribute);
  pins->Adopt(interface);
  auto refuse = [&](const std::string& got, const std::string& want) {
    RefuseObject("interface", role, "got " + got + " in " + attribute, want);
  };
  if (!PyDict_Check(interface)) refuse(Shown(interface), "a dict");
  auto field = [&](const char* name) {
    PyObject* found = PyDict_GetItemString(interface, name);
    return found == Py_None ? nullptr : found;
  };
  auto shown = [](PyObject* found) { return found == nullptr ? "none" : Shown(found); };
  PyObject* shape = field("shape");
  PyObject* typestr = field("typestr");
  PyObject* data = field("data");
  PyObject* strides = field("strides");
  const char* type =
      typestr == nullptr || !PyUnicode_Check(typestr) ? nullptr : PyUnicode_AsUTF8(typestr);
  PyErr_Clear();  // of a string that is no text
  if (type == nullptr) refuse("typestr " + shown(typestr), "a string such as '<f4'");
  if (shape == nullptr || !PyTuple_Check(shape)) refuse("shape " + shown(shape), "a tuple");
  if (data == nullptr || !PyTuple_Check(data) || PyTuple_GET_SIZE(data) != 2) {
    refuse("data " + shown(data), "a tuple of an address and a read-only flag");
  }
  Py_ssize_t rank = PyTuple_GET_SIZE(shape);
  if (strides != nullptr && (!PyTuple_Check(strides) || PyTuple_GET_SIZE(strides) != rank)) {
    refuse("strides " + shown(strides), "none or a tuple of " + std::to_string(rank));
  }
  if (PyObject* mask = field("mask")) refuse("mask " + shown(mask), "none");
  bool cuda = std::strcmp(attribute, "__cuda_array_interface__") == 0;
  out->kind = Buffer::Kind::kTensor;
  out->device = {kDLCPU, 0};
  out->dtype = DTypeOfTypestr(type, role);
  out->data = ReadAddress(PyTuple_GET_ITEM(data, 0), role);
  int readonly = PyObject_IsTrue(PyTuple_GET_ITEM(data, 1));
  if (readonly < 0) throw PythonErrorSet{};
  out->readonly = readonly != 0;
  out->ndim = static_cast<int32_t>(rank);
  int64_t* axes = pins->NewAxes(2 * static_cast<size_t>(rank));
  ReadAxes(shape, "shape", role, axes);
  for (int axis = 0; axis < out->ndim; ++axis) {
    if (axes[axis] < 0) refuse("shape " + shown(shape), "no extent below 0");
  }
  if (strides != nullptr) {
    ReadAxes(strides, "strides", role, axes + rank);
    for (int axis = 0; axis < out->ndim; ++axis) {
      axes[rank + axis] = StrideInElements(axes[rank + axis], BitsOf(out->dtype) / 8, role);
    }
  }
  out->shape = axes;
  out->strides = strides != nullptr ? axes + out->ndim : nullptr;
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

// Who sees to it that the elements are there when the kernel reads them.
enum class Readiness { kOfStream, kOfProducer };

void FromDLPack(PyObject* object, const Role& role, Pins* pins, Buffer* out,
                Readiness readiness = Readiness::kOfStream) {
  PyObject* device = PyObject_CallMethod(object, "__dlpack_device__", nullptr);
  if (device == nullptr) throw PythonErrorSet{};
  pins->Adopt(device);
  PyObject* type = PySequence_GetItem(device, 0);
  if (type == nullptr) throw PythonErrorSet{};
  pins->Adopt(type);
  long device_type = PyLong_AsLong(type);
  if (device_type == -1 && PyErr_Occurred() != nullptr) throw PythonErrorSet{};
  PyObject* capsule =
      ExportDLPack(object, device_type == kDLCUDA && readiness == Readiness::kOfStream);
  pins->Adopt(capsule);  // its destructor releases the export after the call
  if (PyCapsule_IsValid(capsule, "dltensor_versioned") != 0) {
    auto* tensor =
        static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (tensor->version.major != 1) {
      RefuseObject("interface", role, "got DLPack version " + std::to_string(tensor->version.major),
                   "1");
    }
    DescribeTensor(tensor->dl_tensor, out);
    out->readonly = (tensor->flags & kDLFlagReadOnly) != 0;
  } else if (PyCapsule_IsValid(capsule, "dltensor") != 0) {
    auto* tensor = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
    DescribeTensor(tensor->dl_tensor, out);
  } else {
    RefuseObject("interface", role, "got " + Shown(capsule) + " from __dlpack__",
                 "a DLPack capsule");
  }
}

void FromExchange(PyObject* object, const DLPackExchangeApi& api, Pins* pins, Buffer* out) {
  if (api.dltensor_from_py_object_no_sync != nullptr) {
    DLTensor tensor;
    if (api.dltensor_from_py_object_no_sync(object, &tensor) != 0) throw PythonErrorSet{};
    DescribeTensor(tensor, out);
    return;
  }
  DLManagedTensorVersioned* tensor = nullptr;
  if (api.managed_tensor_from_py_object_no_sync(object, &tensor) != 0) throw PythonErrorSet{};
  pins->Keep(tensor);
  DescribeTensor(tensor->dl_tensor, out);
  out->readonly = (tensor->flags & kDLFlagReadOnly) != 0;
}

bool IsPlainInt(PyObject* object) { return PyLong_Check(object) && !PyBool_Check(object); }

}  // namespace

char* ReadAddress(PyObject* object, const Role& role) {
  int beyond = -1;
  long long address = -1;
  if (PyLong_Check(object)) address = PyLong_AsLongLongAndOverflow(object, &beyond);
  if (beyond > 0) {  // the upper half of the address space, or no address at all
    address = static_cast<long long>(PyLong_AsUnsignedLongLong(object));
    beyond = PyErr_Occurred() != nullptr;
  } else if (address < 0) {
    beyond = 1;
  }
  if (beyond != 0) {
    PyErr_Clear();
    RefuseObject("address", role, "got " + Shown(object), "an address of 64 bits");
  }
  return reinterpret_cast<char*>(static_cast<uintptr_t>(address));
}

Pins::~Pins() {
  for (size_t i = 0; i < num_objects_; ++i) Py_DECREF(objects_[i]);
  for (PyObject* object : more_objects_) Py_DECREF(object);
  for (const auto& view : views_) PyBuffer_Release(view.get());
  for (DLManagedTensorVersioned* tensor : tensors_) {
    if (tensor->deleter != nullptr) tensor->deleter(tensor);
  }
}

void DescribeBuffer(PyObject* object, const Role& role, Pins* pins, Buffer* out) {
  if (object == Py_None) return;
  if (IsPlainInt(object)) {
    out->kind = Buffer::Kind::kAddress;
    out->data = ReadAddress(object, role);
    return;
  }
  const TypeEntry& entry = EntryOf(Py_TYPE(object));
  switch (entry.protocol) {
    case Protocol::kExchange:
      return FromExchange(object, *entry.api, pins, out);
    case Protocol::kPyBuffer:
      if (FromPyBuffer(object, role, pins, out)) return;
      // NumPy has no buffer format for the element types that other packages add.
      if (HasAttribute(object, "__array_interface__")) {
        return FromInterface(object, "__array_interface__", role, pins, out);
      }
      // A type may have the buffer protocol for its arrays on the host alone. That of jax has, and
      // takes -1 for the address of a stream; without a stream it waits until the array is there.
      if (HasAttribute(object, "__dlpack__")) {
        return FromDLPack(object, role, pins, out, Readiness::kOfProducer);
      }
      break;
    case Protocol::kDLPack:
      return FromDLPack(object, role, pins, out);
    case Protocol::kCudaInterface:
      return FromInterface(object, "__cuda_array_interface__", role, pins, out);
    case Protocol::kArrayInterface:
      return FromInterface(object, "__array_interface__", role, pins, out);
    case Protocol::kNone:
      break;
  }
  // An instance may carry what its type does not.
  for (const char* attribute : {"__cuda_array_interface__", "__array_interface__"}) {
    if (HasAttribute(object, attribute)) return FromInterface(object, attribute, role, pins, out);
  }
  PyErr_Format(PyExc_TypeError,
               "%s: got a %s, want a tensor (DLPack, __cuda_array_interface__ or the buffer "
               "protocol), an address or None",
               role.name, Py_TYPE(object)->tp_name);
  throw PythonErrorSet{};
}

}  // namespace cudnn_aot
