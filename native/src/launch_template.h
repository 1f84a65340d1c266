// A launch as the kernel's host function makes it, but for the addresses of the call.
//
// The host function turns tensors into kernel parameters: TMA descriptors, pointers, extents. Among
// calls that are alike (settled.h) these differ in addresses only. So the host function is asked a
// dozen times for a launch that is recorded instead of made, at other addresses each time
// (learnt.cpp); the words in which the recordings follow an address are where the addresses of a
// call go. Recordings that differ in any other way give no template, and the host function is
// called each time. What is assumed of it: of addresses it reads values, alignment up to 4 KiB, and
// which are equal or null; and it depends on nothing else that differs between calls that are
// alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cudnn_aot {

// CUlaunchConfig, which cudaLaunchConfig_t agrees with: shared memory is less than 4 GiB.
struct LaunchConfig {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t smem_bytes;
  uint32_t padding;
  void* stream;
  const void* attributes;
  uint32_t num_attributes;
};

// What a kernel's launches call in place of cudaLaunchKernelExC, with the arguments and results of
// cuLaunchKernelEx; an error makes the kernel try the runtime, which explains it.
int LaunchHook(const LaunchConfig* config, const void* kernel, void** params, void** extra);

// A launch that was recorded.
struct Recorded {
  const void* kernel = nullptr;
  LaunchConfig config{};
  std::string attributes;
  std::string params;  // as the kernel has them in memory
};

// While one lives, the launches of this thread are recorded and not made.
class Recording {
 public:
  Recording();
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // The only launch; null if there was none or another one, or one that cannot be recorded: the
  // driver does not tell its parameters (before CUDA 12.4), or an attribute is not known here.
  const Recorded* only() const { return count_ == 1 && complete_ ? &launch_ : nullptr; }

 private:
  friend int LaunchHook(const LaunchConfig*, const void*, void**, void**);
  Recorded launch_;
  int count_ = 0;
  bool complete_ = true;
};

class LaunchTemplate {
 public:
  static constexpr size_t kMaxParams = 4096;  // bytes

  struct Probe {
    Recorded launch;
    std::vector<uintptr_t> bases;  // the addresses that the launch was recorded with
  };

  // Null where the probes differ in more than addresses that follow their bases, and where the
  // driver has no function for the kernel in the context that is current.
  static std::unique_ptr<const LaunchTemplate> Learn(const std::vector<Probe>& probes);

  // Launches for other bases. False, with nothing launched, if the driver refuses.
  template <typename F>
  bool Launch(F base, void* stream) const {
    alignas(64) char params[kMaxParams];
    Copy(params);
    for (const Patch& patch : patches_) {
      Write(params + patch.offset, base(patch.base) + static_cast<uintptr_t>(patch.delta));
    }
    return Launch(params, stream);
  }

 private:
  struct Patch {
    size_t offset;
    int base;
    int64_t delta;
  };

  void Copy(char* params) const;
  static void Write(char* at, uintptr_t address);
  bool Launch(char* params, void* stream) const;

  Recorded launch_;  // its kernel is the driver's function of one device
  std::vector<Patch> patches_;
};

}  // namespace cudnn_aot
