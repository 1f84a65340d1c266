// What runs the blob of a backend step: a plug-in that the caller brings.
#pragma once

#include <functional>

namespace cudnn_aot {

// One call of a plug-in. `addresses` holds one address for each uid of the step, in that order; a
// scalar's is of a number in host memory. All of it lives until the call returns. With null
// `addresses` the plug-in gets ready for the device and runs nothing.
struct BackendCall {
  int device = -1;  // CUDA ordinal, whose context is current; -1 for a table of the CPU
  void* const* addresses = nullptr;
  int count = 0;
  void* workspace = nullptr;  // null for a step without a slice
  void* stream = nullptr;
};

// Runs or enqueues; called from any number of threads at once. Throws LaunchFailure.
using Backend = std::function<void(const BackendCall&)>;

}  // namespace cudnn_aot
