#include "cuda.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include "error.h"

namespace cudnn_aot::cuda {
namespace {

constexpr int kSuccess = 0;
constexpr int kInitializationError = 3;    // what a child of a process that used CUDA gets
constexpr uintptr_t kPerThreadStream = 2;  // after null and the legacy default stream
constexpr int kAttrMultiProcessorCount = 16;
constexpr int kAttrL2CacheSize = 38;
constexpr int kAttrComputeCapabilityMajor = 75;
constexpr int kAttrComputeCapabilityMinor = 76;
constexpr int kAttrMaxSharedMemoryPerBlockOptin = 97;

struct Runtime {
  int (*get_device)(int* device);
  int (*get_device_count)(int* count);
  int (*device_get_attribute)(int* value, int attribute, int device);
  int (*driver_get_version)(int* version);
  int (*get_last_error)();
  const char* (*get_error_name)(int code);
  const char* (*get_error_string)(int code);
};

struct Driver {  // for fills: 16 and 32 bits wide, and in a context chosen without cudaSetDevice
  int (*init)(unsigned flags);
  int (*device_get)(int* device, int ordinal);
  int (*primary_ctx_retain)(void** context, int device);
  int (*ctx_push_current)(void* context);
  int (*ctx_pop_current)(void** context);
  int (*memset_d8_async)(unsigned long long data, unsigned char value, size_t count, void* stream);
  int (*memset_d16_async)(unsigned long long data, unsigned short value, size_t count,
                          void* stream);
  int (*memset_d32_async)(unsigned long long data, unsigned value, size_t count, void* stream);
  int (*get_error_string)(int code, const char** text);
  int (*ctx_get_current)(void** context);
  int (*ctx_get_device)(int* device);
  int (*stream_get_ctx)(void* stream, void** context);
};

std::mutex mutex;
Runtime runtime;
Driver driver;
std::string runtime_path;  // empty until one is loaded
std::atomic<bool> loaded{false};
std::atomic<bool> driver_loaded{false};
std::atomic<bool> used{false};
std::atomic<bool> forked{false};
std::atomic<bool> is_child{false};  // forked after this library was loaded, CUDA in use or not
std::atomic<int> sm_counts[kMaxDevices];
std::atomic<void*> contexts[kMaxDevices];  // primary ones, retained for good

const int at_fork = pthread_atfork(nullptr, nullptr, [] {
  is_child.store(true);
  if (used.load()) forked.store(true);
});

template <typename F>
bool Bind(void* handle, const char* name, F* out) {
  *out = reinterpret_cast<F>(dlsym(handle, name));
  return *out != nullptr;
}

bool TryLoad(const std::string& name) {
  // Global, because kernels name no libcudart: they bind to whichever one is visible.
  void* handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_GLOBAL);
  if (handle == nullptr) return false;
  Runtime found;
  bool complete = Bind(handle, "cudaGetDevice", &found.get_device) &&
                  Bind(handle, "cudaGetDeviceCount", &found.get_device_count) &&
                  Bind(handle, "cudaDeviceGetAttribute", &found.device_get_attribute) &&
                  Bind(handle, "cudaDriverGetVersion", &found.driver_get_version) &&
                  Bind(handle, "cudaGetLastError", &found.get_last_error) &&
                  Bind(handle, "cudaGetErrorName", &found.get_error_name) &&
                  Bind(handle, "cudaGetErrorString", &found.get_error_string);
  if (!complete) return false;
  runtime = found;
  Dl_info info;
  runtime_path =
      dladdr(reinterpret_cast<void*>(found.get_device), &info) != 0 ? info.dli_fname : name;
  loaded.store(true);
  return true;
}

void EnsureRuntime() {
  if (loaded.load()) return;
  if (LoadRuntime("").empty()) {
    throw RequirementFailure(
        "no libcudart: got none in this process, in nvidia-cuda-runtime or on the system, want "
        "libcudart.so.12 or .13; install nvidia-cuda-runtime or set CUDNN_AOT_CUDART to its path");
  }
}

std::string ErrorText(int code) {
  return std::string(runtime.get_error_name(code)) + ": " + runtime.get_error_string(code);
}

void Check(int code, const char* what) {
  if (code == kSuccess) return;
  runtime.get_last_error();  // not left behind for the caller's next CUDA call
  throw LaunchFailure(std::string(what) + " failed with " + ErrorText(code));
}

// Another library of the parent, torch for one, may have used CUDA before the fork.
[[noreturn]] void FailWithoutDevice(int code) {
  runtime.get_last_error();
  if (code == kInitializationError && is_child.load()) {
    forked.store(true);
    RefuseAfterFork();
  }
  throw RequirementFailure("no CUDA device: " + ErrorText(code));
}

// The first call into CUDA: whatever fails here means no usable driver or device.
void RequireDevice(int device) {
  EnsureRuntime();
  RefuseAfterFork();
  int version = 0;
  if (runtime.driver_get_version(&version) != kSuccess || version == 0) {
    throw RequirementFailure("no CUDA driver: got none, want one that runs device " +
                             std::to_string(device) + ": install it, or use plans for cpu");
  }
  int count = 0;
  int code = runtime.get_device_count(&count);
  used.store(true);
  if (code != kSuccess) FailWithoutDevice(code);
  if (device < 0 || device >= count || device >= kMaxDevices) {
    throw RequirementFailure("no such device: got cuda:" + std::to_string(device) + ", want 0 to " +
                             std::to_string(count - 1));
  }
}

void LoadDriver() {
  if (driver_loaded.load()) return;
  std::lock_guard<std::mutex> lock(mutex);
  void* handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) {
    throw RequirementFailure(std::string("no CUDA driver: ") + dlerror() +
                             ": install it, or use plans for cpu");
  }
  bool complete = Bind(handle, "cuInit", &driver.init) &&
                  Bind(handle, "cuDeviceGet", &driver.device_get) &&
                  Bind(handle, "cuDevicePrimaryCtxRetain", &driver.primary_ctx_retain) &&
                  Bind(handle, "cuCtxPushCurrent_v2", &driver.ctx_push_current) &&
                  Bind(handle, "cuCtxPopCurrent_v2", &driver.ctx_pop_current) &&
                  Bind(handle, "cuMemsetD8Async", &driver.memset_d8_async) &&
                  Bind(handle, "cuMemsetD16Async", &driver.memset_d16_async) &&
                  Bind(handle, "cuMemsetD32Async", &driver.memset_d32_async) &&
                  Bind(handle, "cuGetErrorString", &driver.get_error_string) &&
                  Bind(handle, "cuCtxGetCurrent", &driver.ctx_get_current) &&
                  Bind(handle, "cuCtxGetDevice", &driver.ctx_get_device) &&
                  Bind(handle, "cuStreamGetCtx", &driver.stream_get_ctx);
  if (!complete) throw RequirementFailure("libcuda.so.1 lacks a symbol that every driver has");
  driver_loaded.store(true);
}

void CheckDriver(int code, const char* what) {
  if (code == kSuccess) return;
  const char* text = nullptr;
  driver.get_error_string(code, &text);
  throw LaunchFailure(std::string(what) + " failed with " +
                      (text != nullptr ? text : "error " + std::to_string(code)));
}

int Attribute(int attribute, int device) {
  int value = 0;
  Check(runtime.device_get_attribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

std::string FindLoadedRuntime() {
  std::string found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        const char* slash = std::strrchr(info->dlpi_name, '/');
        const char* base = slash == nullptr ? info->dlpi_name : slash + 1;
        if (std::strncmp(base, "libcudart", 9) != 0) return 0;
        *static_cast<std::string*>(out) = info->dlpi_name;
        return 1;
      },
      &found);
  return found;
}

std::string LoadRuntime(const std::string& path) {
  std::lock_guard<std::mutex> lock(mutex);
  if (loaded.load()) return runtime_path;
  if (!path.empty()) {
    if (!TryLoad(path)) {
      const char* reason = dlerror();
      throw RequirementFailure("libcudart did not load: " +
                               (reason != nullptr ? reason : path + " lacks a symbol"));
    }
    return runtime_path;
  }
  std::string in_process = FindLoadedRuntime();
  if (!in_process.empty() && TryLoad(in_process)) return runtime_path;
  for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so"}) {
    if (TryLoad(name)) return runtime_path;
  }
  return "";
}

Attributes DeviceAttributes(int device) {
  RequireDevice(device);
  Attributes out;
  out.major = Attribute(kAttrComputeCapabilityMajor, device);
  out.minor = Attribute(kAttrComputeCapabilityMinor, device);
  out.sm_count = Attribute(kAttrMultiProcessorCount, device);
  out.smem_optin_bytes = Attribute(kAttrMaxSharedMemoryPerBlockOptin, device);
  out.l2_bytes = Attribute(kAttrL2CacheSize, device);
  Check(runtime.driver_get_version(&out.driver_version), "cudaDriverGetVersion");
  return out;
}

int CurrentDevice() {
  EnsureRuntime();
  RefuseAfterFork();
  int device = 0;
  int code = runtime.get_device(&device);
  used.store(true);
  if (code != kSuccess) FailWithoutDevice(code);
  return device;
}

int SmCount(int device) {
  int count = device < kMaxDevices ? sm_counts[device].load(std::memory_order_relaxed) : 0;
  if (count == 0) {
    RequireDevice(device);
    count = Attribute(kAttrMultiProcessorCount, device);
    sm_counts[device].store(count, std::memory_order_relaxed);
  }
  return count;
}

void UsePrimaryContext(int device) {
  if (contexts[device].load() != nullptr) return;
  RequireDevice(device);
  LoadDriver();
  int handle = 0;
  void* context = nullptr;
  CheckDriver(driver.init(0), "cuInit");
  CheckDriver(driver.device_get(&handle, device), "cuDeviceGet");
  CheckDriver(driver.primary_ctx_retain(&context, handle), "cuDevicePrimaryCtxRetain");
  contexts[device].store(context);
}

void Fill(int device, void* data, uint32_t pattern, int width, int64_t bytes, void* stream) {
  auto address = reinterpret_cast<unsigned long long>(data);
  auto count = static_cast<size_t>(bytes / width);
  DeviceScope scope(device);
  int code = 0;
  switch (width) {
    case 1:
      code = driver.memset_d8_async(address, static_cast<unsigned char>(pattern), count, stream);
      break;
    case 2:
      code = driver.memset_d16_async(address, static_cast<unsigned short>(pattern), count, stream);
      break;
    default:
      code = driver.memset_d32_async(address, pattern, count, stream);
  }
  CheckDriver(code, "cuMemsetAsync");
}

bool IsDefaultStream(void* stream) {
  return reinterpret_cast<uintptr_t>(stream) <= kPerThreadStream;
}

void RequireStream(void* stream, int device) {
  if (IsDefaultStream(stream)) return;
  UsePrimaryContext(device);
  void* context = nullptr;
  CheckDriver(driver.stream_get_ctx(stream, &context), "cuStreamGetCtx");
  if (context == contexts[device].load()) return;
  int of_stream = 0;
  CheckDriver(driver.ctx_push_current(context), "cuCtxPushCurrent");
  int code = driver.ctx_get_device(&of_stream);
  driver.ctx_pop_current(&context);
  CheckDriver(code, "cuCtxGetDevice");
  if (of_stream == device) return;  // another context of it
  throw Refusal("device", Refusal::kNoOperand,
                "stream: got one of cuda:" + std::to_string(of_stream) +
                    ", want one of cuda:" + std::to_string(device) + ", where the operands are");
}

DeviceScope::DeviceScope(int device, void* stream) {
  UsePrimaryContext(device);
  RequireStream(stream, device);
  void* context = nullptr;
  CheckDriver(driver.ctx_get_current(&context), "cuCtxGetCurrent");
  if (context == contexts[device].load()) return;
  CheckDriver(driver.ctx_push_current(contexts[device].load()), "cuCtxPushCurrent");
  pushed_ = true;
}

DeviceScope::~DeviceScope() {
  void* popped = nullptr;
  if (pushed_) driver.ctx_pop_current(&popped);
}

void* FindDriverFunction(const char* name) {
  void* handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  return handle == nullptr ? nullptr : dlsym(handle, name);
}

void RefuseAfterFork() {
  if (forked.load(std::memory_order_relaxed)) {
    throw LaunchFailure(
        "CUDA was in use when this process was forked and does not survive that; fork before the "
        "first prepare or execute, or start the process by spawning");
  }
}

}  // namespace cudnn_aot::cuda
