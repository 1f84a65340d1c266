// The CUDA runtime, found when the first GPU plan is used and never linked: CPU plans need none.
#pragma once

#include <cstdint>
#include <string>

namespace cudnn_aot::cuda {

constexpr int kMaxDevices = 64;

// The path of a libcudart that this process has already loaded, under whatever name; "" if none.
std::string FindLoadedRuntime();

// Makes a libcudart visible to kernels: the one at `path`, or with an empty path the one that
// the process has already loaded, else one on the system's search path. Returns its path, or ""
// when an empty path found none; throws RequirementFailure when `path` did not load. Once one is
// loaded, later calls change nothing.
std::string LoadRuntime(const std::string& path);

struct Attributes {
  int major = 0;
  int minor = 0;
  int sm_count = 0;
  int smem_optin_bytes = 0;
  int l2_bytes = 0;
  int driver_version = 0;  // 12090 for 12.9
};

// All of these load a runtime if none is loaded, and throw LaunchFailure when CUDA fails,
// RequirementFailure when there is no runtime, no driver or no such device.
Attributes DeviceAttributes(int device);
int CurrentDevice();
int SmCount(int device);  // cached

// Writes the `width`-byte `pattern` over `bytes` bytes (a multiple of `width`) on a stream of
// `device`. The thread's current device is not touched, nor is a context made on another one.
void Fill(int device, void* data, uint32_t pattern, int width, int64_t bytes, void* stream);
void UsePrimaryContext(int device);  // all that the first of these on a device would do lazily

// For a scope, the primary context of a device is current on this thread, whatever the caller's is.
// Throws as RequireStream does.
class DeviceScope {
 public:
  explicit DeviceScope(int device, void* stream = nullptr);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  bool pushed_ = false;
};

// A default stream is that of whatever device is current.
bool IsDefaultStream(void* stream);

// Throws Refusal (rule "device") for a stream of another device, unless it is a default stream.
void RequireStream(void* stream, int device);

// A function of libcuda, null where there is no driver or it is too old.
void* FindDriverFunction(const char* name);

// Throws LaunchFailure in a process forked after CUDA was used here: CUDA does not survive a fork.
void RefuseAfterFork();

}  // namespace cudnn_aot::cuda
