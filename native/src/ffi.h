// The C ABI of tvm-ffi: the error that a call raised, and the stream that kernels launch on.
#pragma once

#include <string>

#include "abi.h"

namespace cudnn_aot::ffi {

// Loads libtvm_ffi with global visibility, so that kernels find it, and makes the symbols that
// kernels need from this library visible to them. Idempotent. Throws LaunchFailure.
void Init(const std::string& path);
bool Ready();

// Takes the error that the last failed call raised on this thread: "<kind>", "<message>".
struct Raised {
  std::string kind;
  std::string message;  // one line
};
Raised TakeRaised();

// Sets this thread's stream of a device for a scope.
class StreamScope {
 public:
  StreamScope(DLDevice device, void* stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  DLDevice device_;
  void* stream_;
  void* before_ = nullptr;
};

void Release(const FfiAny& value);  // drops the reference that a call's result may own

}  // namespace cudnn_aot::ffi
