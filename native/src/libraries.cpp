#include "libraries.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <string>

#include "cuda.h"
#include "error.h"
#include "ffi.h"

namespace cudnn_aot {
namespace {

// The folder that holds the Python packages: this library is cudnn_aot/lib/libcudnn_aot.so there.
std::string PackagesFolder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&LoadTvmFfi), &info) == 0) return "";
  std::string path = info.dli_fname;
  size_t slash = path.rfind('/');
  return (slash == std::string::npos ? "." : path.substr(0, slash)) + "/../..";
}

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool IsFile(const std::string& path) { return access(path.c_str(), R_OK) == 0; }

std::string FindLoadedTvmFfi() {
  std::string found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        std::string path = info->dlpi_name;
        if (path.substr(path.rfind('/') + 1) != "libtvm_ffi.so") return 0;
        *static_cast<std::string*>(out) = path;
        return 1;
      },
      &found);
  return found;
}

std::string FindTvmFfi() {
  constexpr char kVariable[] = "CUDNN_AOT_TVM_FFI";
  constexpr char kName[] = "libtvm_ffi.so";
  if (std::string named = Variable(kVariable); !named.empty()) return named;
  if (std::string loaded = FindLoadedTvmFfi(); !loaded.empty()) return loaded;
  std::string wheel = PackagesFolder() + "/tvm_ffi/lib/" + kName;
  if (IsFile(wheel)) return wheel;
  if (dlopen(kName, RTLD_NOW | RTLD_GLOBAL) != nullptr) return kName;
  throw RequirementFailure(
      std::string(
          "no libtvm_ffi: got none in this process, in an apache-tvm-ffi wheel beside "
          "cudnn-aot or on the system, want 0.1.15 or newer; install apache-tvm-ffi or set ") +
      kVariable + " to its path");
}

}  // namespace

void LoadTvmFfi() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (!ffi::Ready()) ffi::Init(FindTvmFfi());
}

void LoadCudart() {
  if (std::string named = Variable("CUDNN_AOT_CUDART"); !named.empty()) {
    cuda::LoadRuntime(named);
    return;
  }
  std::string found = cuda::FindLoadedRuntime();
  if (found.empty()) {
    for (const char* name :
         {"/nvidia/cu13/lib/libcudart.so.13", "/nvidia/cuda_runtime/lib/libcudart.so.12"}) {
      std::string wheel = PackagesFolder() + name;
      if (found.empty() && IsFile(wheel)) found = wheel;
    }
  }
  if (!cuda::LoadRuntime(found).empty()) return;
  throw RequirementFailure(
      "no libcudart: got none in this process, in an nvidia-cuda-runtime wheel or on the system, "
      "want libcudart.so.12 or .13; install nvidia-cuda-runtime or set CUDNN_AOT_CUDART");
}

}  // namespace cudnn_aot
