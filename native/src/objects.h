// Python objects as plain descriptions of buffers.
#pragma once

#include <Python.h>

#include <memory>
#include <string>
#include <vector>

#include "error.h"
#include "pack.h"
#include "tensor.h"

namespace cudnn_aot {

// Keeps alive, for one call, what descriptions borrow: objects, buffer views, DLPack exports and
// converted shapes.
class Pins {
 public:
  Pins() = default;
  ~Pins();
  Pins(const Pins&) = delete;
  Pins& operator=(const Pins&) = delete;

  void Keep(PyObject* object) {  // takes its own reference
    Py_INCREF(object);
    Adopt(object);
  }
  void Adopt(PyObject* object) {  // takes over the caller's reference
    if (num_objects_ < kInline) {
      objects_[num_objects_++] = object;
    } else {
      more_objects_.push_back(object);
    }
  }
  Py_buffer* NewView() { return views_.emplace_back(new Py_buffer).get(); }
  void DropView() { views_.pop_back(); }
  void Keep(DLManagedTensorVersioned* tensor) { tensors_.push_back(tensor); }
  int64_t* NewAxes(size_t count) { return axes_.emplace_back(new int64_t[count]).get(); }

 private:
  static constexpr size_t kInline = 24;

  PyObject* objects_[kInline];
  size_t num_objects_ = 0;
  // Empty, and so free of allocation, in the calls that are on the path of a launch.
  std::vector<PyObject*> more_objects_;
  std::vector<std::unique_ptr<Py_buffer>> views_;
  std::vector<DLManagedTensorVersioned*> tensors_;
  std::vector<std::unique_ptr<int64_t[]>> axes_;
};

// All functions below hold the GIL; they throw Refusal, or PythonErrorSet after a Python error.

// The address that a Python int states.
char* ReadAddress(PyObject* object, const Role& role);

// An address (int), None, or an object of any of the buffer protocols. TypeError for others. The
// object itself is kept alive by the caller.
void DescribeBuffer(PyObject* object, const Role& role, Pins* pins, Buffer* out);

}  // namespace cudnn_aot
