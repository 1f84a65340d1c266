// The devices that a plan was made ready for, and the one that a call runs on.
#pragma once

#include <atomic>
#include <functional>

#include "cuda.h"
#include "pack.h"
#include "plan.h"

namespace cudnn_aot {

class Devices {
 public:
  static constexpr int kCurrent = -1;

  // Called with a device before its first use, and once with kCurrent before CUDA is asked which
  // device is current: then it makes a libcudart visible. May be called again for one device by
  // threads that meet it at the same time. What it throws is passed on.
  using Hook = std::function<void(int device)>;

  void SetHook(Hook hook) { hook_ = std::move(hook); }  // before the first use

  // Makes the plan ready for a device, once. Throws RequirementFailure for a number that names
  // none.
  void Ensure(int device);

  int Current();

  // Where the call runs; `named` says whether one of its buffers told. Throws Refusal.
  DLDevice Find(const Table& table, const Call& call, bool* named);

  // How many SMs the device of a call may have: as many as the largest that was met, else any.
  Interval SmCounts() const;

 private:
  Hook hook_;
  std::atomic<bool> has_runtime_{false};
  std::atomic<bool> ready_[cuda::kMaxDevices] = {};
};

}  // namespace cudnn_aot
