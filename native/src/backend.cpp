// Backend steps of a plan: gathers the addresses of one call and hands them to the plug-in.
#include "backend.h"

#include <optional>
#include <vector>

#include "cuda.h"
#include "error.h"
#include "plan.h"

namespace cudnn_aot {
namespace {

void RunPlugin(const Backend& backend, const BackendCall& call, const Branch& branch,
               const Step& step) {
  std::optional<cuda::DeviceScope> scope;
  if (call.device >= 0) scope.emplace(call.device);
  try {
    backend(call);
  } catch (const LaunchFailure& failure) {
    throw LaunchFailure("blob " + std::to_string(step.blob) + " of branch '" + branch.name +
                        "' failed to " + (call.addresses != nullptr ? "launch: " : "prepare: ") +
                        failure.what());
  }
}

}  // namespace

void Plan::BindBackend(const Branch& branch, const Step& step, const Frame& frame) const {
  for (int index : step.operands) {
    const Operand& operand = table_.operands[index];
    if (operand.kind != Operand::Kind::kScalar && !frame.slots[index].present) {
      Refuse("presence", operand, "nothing", "a buffer for branch '" + branch.name + "'");
    }
  }
}

void Plan::RunBackend(const Branch& branch, const Step& step, const Frame& frame,
                      void* stream) const {
  std::vector<void*> addresses(step.operands.size() + 1);  // never empty: null means prepare
  std::vector<int64_t> numbers(step.operands.size());
  for (size_t i = 0; i < step.operands.size(); ++i) {
    const Operand& operand = table_.operands[step.operands[i]];
    if (operand.kind == Operand::Kind::kScalar) {
      const Scalar& scalar = frame.scalars[step.operands[i]];
      StoreNumber(*operand.dtype, scalar.number, scalar.integer, &numbers[i]);
      addresses[i] = &numbers[i];
    } else {
      addresses[i] = frame.slots[step.operands[i]].data;
    }
  }
  BackendCall call;
  call.device = table_.cuda ? frame.device.device_id : -1;
  call.addresses = addresses.data();
  call.count = static_cast<int>(step.operands.size());
  if (step.slice >= 0) call.workspace = frame.workspace + frame.slice_offset[step.slice];
  call.stream = stream;
  RunPlugin(backends_[step.blob], call, branch, step);
}

void Plan::PrepareBackend(const Branch& branch, const Step& step, int device) const {
  BackendCall call;
  call.device = device;
  RunPlugin(backends_[step.blob], call, branch, step);
}

}  // namespace cudnn_aot
