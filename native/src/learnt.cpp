// Learnt launches of a settled call: asking host functions for them, and making them.
#include <optional>
#include <random>
#include <vector>

#include "cuda.h"
#include "error.h"
#include "ffi.h"
#include "plan.h"

namespace cudnn_aot {
namespace {

constexpr uintptr_t kAddressBits = (uintptr_t{1} << 47) - 1;  // of a process
constexpr uintptr_t kPage = 4096;

uintptr_t AddressOf(const Buffer& buffer) { return reinterpret_cast<uintptr_t>(buffer.data); }

// Addresses to ask a host function for its launch with. Nothing is launched on them; what they must
// keep is the remainder of the call's address modulo the alignment that the table asks about, and
// null. What a host function may see in an address beside its value is in some of them: every
// alignment from that one on, addresses that are equal, a small one, and the call's own.
class Inventor {
 public:
  static constexpr int kAlignments = 9;
  enum Turn { kEqual = kAlignments, kSmall, kOwn, kTurns };

  void Next() { common_ = random_() & kAddressBits & ~(kPage - 1); }

  uintptr_t Address(int turn, uintptr_t own, uintptr_t mask) {
    uintptr_t address = random_() & kAddressBits;
    switch (turn) {
      case kEqual:
        address = common_;
        break;
      case kSmall:
        address &= UINT32_MAX;
        break;
      case kOwn:
        return own;
      default: {
        uintptr_t lowest = (mask + 1) << turn;  // the lowest bit that is set above the mask
        address = (address & ~(2 * lowest - 1)) | lowest;
      }
    }
    return (address & ~mask) | (own & mask);
  }

 private:
  std::mt19937_64 random_;
  uintptr_t common_ = 0;
};

}  // namespace

std::unique_ptr<const Settled::Launches> Plan::LearnLaunches(const Settled& settled,
                                                             const Call& call) const {
  if (!table_.cuda || !table_.scalars.empty()) return nullptr;
  for (const Settled::Action& action : settled.actions_) {
    bool is_kernel = action.step->kind == Step::Kind::kKernel;
    if (is_kernel && !kernels_[action.step->kernel]->has_launch_hook) return nullptr;
  }
  cuda::DeviceScope on_device(settled.device_.device_id);
  ffi::StreamScope on_stream(settled.device_, nullptr);
  std::vector<Buffer> buffers(call.buffers, call.buffers + table_.operands.size());
  Buffer workspace = *call.workspace;
  Call asked = call;
  asked.buffers = buffers.data();
  asked.workspace = &workspace;
  std::vector<std::vector<LaunchTemplate::Probe>> probes(settled.actions_.size());
  Inventor inventor;
  for (int turn = 0; turn < Inventor::kTurns; ++turn) {
    inventor.Next();
    std::vector<uintptr_t> bases;
    auto invent = [&](const Buffer& own, uintptr_t mask, Buffer* out) {
      if (own.data == nullptr) return;
      out->data = reinterpret_cast<char*>(inventor.Address(turn, AddressOf(own), mask));
    };
    for (size_t i = 0; i < buffers.size(); ++i) {
      invent(call.buffers[i], table_.operands[i].address_mask, &buffers[i]);
      bases.push_back(AddressOf(buffers[i]));
    }
    if (settled.needs_workspace_) {
      invent(*call.workspace, settled.workspace_mask_, &workspace);
    }
    bases.push_back(settled.WorkspaceOf(asked));
    LaunchBlock block;
    Fit(settled, asked, &block);
    auto* args = reinterpret_cast<FfiAny*>(block.bytes);
    for (size_t i = 0; i < probes.size(); ++i) {
      const Settled::Action& action = settled.actions_[i];
      if (action.step->kind != Step::Kind::kKernel) continue;
      Recording recording;
      try {
        bool taken =
            CallKernel(*settled.branch_, *action.step, true, false, args + action.first_arg);
        if (!taken || recording.only() == nullptr) return nullptr;
      } catch (const LaunchFailure&) {  // of an address that was made up: the call may be fine
        return nullptr;
      }
      probes[i].push_back({*recording.only(), bases});
    }
  }
  auto launches = std::make_unique<Settled::Launches>(probes.size());
  for (size_t i = 0; i < probes.size(); ++i) {
    if (probes[i].empty()) continue;
    (*launches)[i] = LaunchTemplate::Learn(probes[i]);
    if ((*launches)[i] == nullptr) return nullptr;
  }
  return launches;
}

size_t Plan::Launch(const Settled& settled, const Call& call, void* stream) const {
  const Settled::Launches* launches = settled.launches_.load(std::memory_order_acquire);
  if (launches == nullptr) {
    if (settled.runs_.load(std::memory_order_relaxed) >= Settled::kRunsBeforeLearning) return 0;
    if (settled.runs_.fetch_add(1) + 1 != Settled::kRunsBeforeLearning) return 0;
    settled.learnt_ = LearnLaunches(settled, call);
    launches = settled.learnt_.get();
    if (launches == nullptr) return 0;
    settled.launches_.store(launches, std::memory_order_release);
  }
  std::optional<cuda::DeviceScope> on_device;
  if (cuda::IsDefaultStream(stream)) {
    on_device.emplace(settled.device_.device_id);
  } else {
    cuda::RequireStream(stream, settled.device_.device_id);  // each time: handles are used again
  }
  size_t count = launches->size();
  auto base = [&](size_t i) {
    return i < table_.operands.size() ? AddressOf(call.buffers[i]) : settled.WorkspaceOf(call);
  };
  for (size_t i = 0; i < count; ++i) {
    const Settled::Action& action = settled.actions_[i];
    if (const auto& launch = (*launches)[i]) {
      if (!launch->Launch(base, stream)) return i;
      continue;
    }
    const Settled::Place& place = action.place;  // of a fill
    uintptr_t data = place.operand < 0 ? settled.WorkspaceOf(call) : base(place.operand);
    data += static_cast<uintptr_t>(place.offset);
    RunFill(*action.step, {reinterpret_cast<char*>(data), action.bytes}, settled.device_, stream);
  }
  return count;
}

}  // namespace cudnn_aot
