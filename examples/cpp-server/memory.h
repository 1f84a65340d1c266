// Memory of the device that plans run on: the host's, or CUDA's through the libcudart that
// cudnn-aot has loaded. Building needs no CUDA toolkit.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

using Memory = std::shared_ptr<void>;

class Device {
 public:
  // With `cuda`, once a plan was prepared on device `index`: that makes a libcudart visible. Exits
  // with a message where there is none.
  Device(bool cuda, int index);

  void UseOnThisThread() const;
  Memory Allocate(size_t bytes) const;  // aligned to 256 bytes
  void Write(void* to, const std::vector<char>& from) const;
  void Read(std::vector<char>* to, const void* from) const;
  void Synchronize(void* stream) const;
  Memory MakeStream() const;  // holds null on the host

 private:
  bool cuda_;
  int index_;
};
