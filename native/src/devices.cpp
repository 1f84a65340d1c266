#include "devices.h"

#include <algorithm>
#include <string>

#include "error.h"

namespace cudnn_aot {

void Devices::Ensure(int device) {
  if (device < 0 || device >= cuda::kMaxDevices) {
    throw RequirementFailure("no such device: got cuda:" + std::to_string(device));
  }
  if (ready_[device].load(std::memory_order_acquire)) return;
  if (hook_) hook_(device);
  ready_[device].store(true, std::memory_order_release);
}

int Devices::Current() {
  if (!has_runtime_.load(std::memory_order_acquire)) {
    if (hook_) hook_(kCurrent);
    has_runtime_.store(true, std::memory_order_release);
  }
  return cuda::CurrentDevice();
}

DLDevice Devices::Find(const Table& table, const Call& call, bool* named) {
  DLDevice device{kDLCPU, 0};
  *named = FindDevice(table, call, &device);
  if (!table.cuda) return device;
  cuda::RefuseAfterFork();
  if (!*named) device = {kDLCUDA, Current()};
  Ensure(device.device_id);
  return device;
}

Interval Devices::SmCounts() const {
  constexpr int64_t kMostSms = 1024;
  int64_t most = 0;
  for (int device = 0; device < cuda::kMaxDevices; ++device) {
    if (ready_[device].load()) most = std::max<int64_t>(most, cuda::SmCount(device));
  }
  return {1, most > 0 ? most : kMostSms};
}

}  // namespace cudnn_aot
