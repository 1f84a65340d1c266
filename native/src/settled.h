// A settled call: what a call comes to, kept for calls that differ from it in addresses and in
// numbers only.
//
// Checks, dispatch and views read the extents, strides, types, devices and symbols of a call, and
// of an address no more than whether it is null and its remainder modulo the largest alignment
// that the table asks about. A call that agrees in all of these is proven already, and its kernel
// arguments are the settled ones with other addresses. A refused call is never settled.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "abi.h"
#include "launch_template.h"
#include "pack.h"
#include "table.h"

namespace cudnn_aot {

// The arguments of one call, for all of its steps: kernel arguments, the views that they point to,
// and an address for each step. Lives on the stack of the call.
struct LaunchBlock {
  static constexpr size_t kBytes = 3072;
  alignas(16) char bytes[kBytes];
};

class Settled {
 public:
  using Launches = std::vector<std::unique_ptr<const LaunchTemplate>>;  // of each action, or null

  // Whether `call` is this one but for addresses and numbers; where no buffer names the device,
  // it is for the caller to compare.
  bool Matches(const Table& table, const Call& call) const;

  // Whether the addresses of `call`, which has the operands of this one, keep to what was proven.
  bool Admits(const Table& table, const Call& call) const;

  DLDevice device() const { return device_; }
  bool names_device() const { return names_device_; }

 private:
  friend class Plan;

  struct Bound {  // a buffer of the call, but for its address
    Buffer::Kind kind;
    bool readonly;
    bool is_null;
    bool has_strides;
    DLDataType dtype;
    DLDevice device;
    int32_t ndim;
    size_t axes;          // in axes_: extents, then strides
    uintptr_t remainder;  // of the address
  };

  struct Place {  // an address of the call: of an operand, or of the workspace for -1
    int operand;
    int64_t offset;
  };

  struct Action {  // a step
    const Step* step;
    size_t first_arg;  // in args_, of a kernel
    Place place;       // of a fill
    int64_t bytes;
  };

  struct View {
    size_t arg;
    Place place;
  };

  struct Number {  // an argument that is a scalar's number
    size_t arg;
    int operand;
  };

  // The first aligned byte of the call's workspace, 0 where none is needed.
  uintptr_t WorkspaceOf(const Call& call) const;

  Bound Describe(const Buffer& buffer, uintptr_t mask);
  bool Same(const Bound& bound, const Buffer& buffer, uintptr_t mask) const;

  // What the call was.
  std::vector<Bound> operands_;
  Bound workspace_{};
  bool needs_workspace_ = false;
  uintptr_t workspace_mask_ = 0;
  std::vector<int64_t> axes_;
  std::vector<SymbolValue> symbols_;
  DLDevice device_{kDLCPU, 0};
  bool names_device_ = true;
  // What it comes to.
  const Branch* branch_ = nullptr;
  std::vector<Action> actions_;
  std::vector<FfiAny> args_;
  std::vector<DLTensor> tensors_;  // their extents and strides are in view_axes_
  std::vector<View> views_;        // of each tensor
  std::vector<Number> numbers_;
  std::vector<int64_t> view_axes_;
  // Learnt when the call has come a few times: learning costs as much as some ten calls.
  static constexpr int kRunsBeforeLearning = 3;
  mutable std::atomic<int> runs_{0};
  mutable std::unique_ptr<const Launches> learnt_;  // by the thread of that run alone
  mutable std::atomic<const Launches*> launches_{nullptr};
};

// A few settled calls of a plan, the last ones. Where calls hardly repeat, replacing them gains
// nothing: each one that is replaced without having been found doubles the calls that go by before
// the next is. Not for use by several threads at once; what it hands out may be.
class Recent {
 public:
  // A call like this one, or null. `current_device` is called at most once.
  template <typename F>
  const std::shared_ptr<Settled>* Find(const Table& table, const Call& call, F current_device) {
    int device = -1;
    for (int i = 0; i < kKept; ++i) {
      int at = (last_ + i) % kKept;
      if (entries_[at] == nullptr || !entries_[at]->Matches(table, call)) continue;
      if (!entries_[at]->names_device()) {
        if (device < 0) device = current_device();
        if (device != entries_[at]->device().device_id) continue;
      }
      last_ = at;
      found_[at] = true;
      return &entries_[at];
    }
    return nullptr;
  }

  // An entry to settle a call in, or null to leave it. It is kept once that is done. Entries that
  // a call still runs on are left alone.
  std::shared_ptr<Settled> Take() {
    if (gone_by_ < patience_) {
      ++gone_by_;
      return nullptr;
    }
    std::shared_ptr<Settled> entry = std::move(entries_[next_]);
    if (entry != nullptr) {
      gone_by_ = 0;
      patience_ = found_[next_] ? patience_ / 2 : std::min(2 * patience_ + 1, kMostPatience);
    }
    if (entry == nullptr || entry.use_count() > 1) entry = std::make_shared<Settled>();
    return entry;
  }
  void Keep(std::shared_ptr<Settled> entry) {
    last_ = next_;
    found_[next_] = false;
    entries_[next_] = std::move(entry);
    next_ = (next_ + 1) % kKept;
  }

 private:
  static constexpr int kKept = 8;
  static constexpr int kMostPatience = 63;

  std::shared_ptr<Settled> entries_[kKept];
  bool found_[kKept] = {};  // since it was kept
  int last_ = 0;            // that was found
  int next_ = 0;            // to be replaced
  int patience_ = 0;
  int gone_by_ = 0;
};

}  // namespace cudnn_aot
