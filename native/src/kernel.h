// Loading of compiled kernels: bytes in, the address of one tvm-ffi function out.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "abi.h"

namespace cudnn_aot {

struct Kernel {
  std::string symbol;
  std::string digest;  // of the library's bytes, chosen by the caller
  FfiCall call;
  bool has_launch_hook = false;  // its host function has no effect but launches, by LaunchHook
};

// Loads the shared library in `bytes` and finds `__tvm_ffi_<symbol>`. `digest` identifies the
// bytes: equal digests share one loaded library, which stays loaded for the life of the process
// (running code, CUDA modules and driver callbacks may point into it). Any number of threads may
// load at once. Throws LaunchFailure.
std::shared_ptr<const Kernel> LoadKernel(std::string_view bytes, const std::string& digest,
                                         const std::string& symbol);

}  // namespace cudnn_aot
