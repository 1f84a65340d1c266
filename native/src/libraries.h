// Where a process without Python finds the libraries that serving needs beside this one.
#pragma once

namespace cudnn_aot {

// Loads libtvm_ffi, once: the one at CUDNN_AOT_TVM_FFI, one that this process has loaded, that of
// the apache-tvm-ffi wheel beside this library's, the system's. Throws RequirementFailure if there
// is none, LaunchFailure if it does not load.
void LoadTvmFfi();

// Makes a libcudart visible to kernels, once: the one at CUDNN_AOT_CUDART, one that this process
// has loaded, that of an nvidia-cuda-runtime wheel beside this library's, the system's. Throws
// RequirementFailure.
void LoadCudart();

}  // namespace cudnn_aot
