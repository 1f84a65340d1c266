// A plan that runs calls from any number of threads, without Python.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "devices.h"
#include "plan.h"
#include "settled.h"

namespace cudnn_aot {

// One call, as a program without Python states it. Everything is borrowed.
struct TensorCall {
  int32_t num_tensors = 0;
  const int64_t* uids = nullptr;             // of each tensor; further uids are ignored
  const DLTensor* const* tensors = nullptr;  // null for one that is left out
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  void* stream = nullptr;
  int32_t num_symbols = 0;
  const char* const* symbols = nullptr;  // names, and their values
  const int64_t* values = nullptr;
};

class Executor {
 public:
  Executor(Plan plan, Devices::Hook hook) : plan_(std::move(plan)) {
    devices_.SetHook(std::move(hook));
  }

  const Table& table() const { return plan_.table(); }

  // Checks a call and launches its steps. Throws Refusal, having launched nothing,
  // RequirementFailure and LaunchFailure.
  void Execute(const TensorCall& call);

  // All lazy CUDA work on a device, or on the current one for Devices::kCurrent. Throws
  // StoreFailure (kUsage) for a number below that, RequirementFailure and LaunchFailure.
  void Prepare(int device);

  // What a call with these values of symbols may need; others range over their declaration.
  int64_t WorkspaceBytes(int32_t num_symbols, const char* const* symbols,
                         const int64_t* values) const;

  // Extents and strides, in elements, that an operand is declared to have. Throws Refusal for a
  // symbol that is left out ("symbol_unbound") and a uid that the table has not ("name").
  void DeclaredLayout(int64_t uid, int32_t num_symbols, const char* const* symbols,
                      const int64_t* values, int64_t* dim, int64_t* stride) const;

 private:
  // Calls remembered by some of the threads: a lock that nobody else wants costs next to nothing.
  struct Shard {
    std::mutex mutex;
    Recent recent;
  };
  static constexpr unsigned kShards = 16;

  void Run(const Call& call, void* stream);

  Plan plan_;
  Devices devices_;
  Shard shards_[kShards];
};

}  // namespace cudnn_aot
