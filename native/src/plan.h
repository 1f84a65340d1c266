// A plan: a launch table with its kernels, executed for one call at a time.
#pragma once

#include <memory>
#include <vector>

#include "backend.h"
#include "kernel.h"
#include "pack.h"
#include "settled.h"
#include "table.h"

namespace cudnn_aot {

class Plan {
 public:
  // `kernels` and `backends` (one for each blob) are those of the plan record, by index; throws
  // TableError if too few.
  Plan(Table table, std::vector<std::shared_ptr<const Kernel>> kernels,
       std::vector<Backend> backends);

  const Table& table() const { return table_; }

  // Fills the frame for a call: symbols, operands, checks, branch, workspace. `device` is where
  // the call runs. Throws Refusal; launches nothing.
  void Resolve(const Call& call, DLDevice device, Frame* frame) const;

  // Runs the steps of a resolved frame, in order, on `stream`. Throws LaunchFailure.
  void Run(Frame* frame, void* stream) const;

  // Keeps what the call of a resolved frame comes to. Throws Refusal, as Run would; false for a
  // call that is not to be kept. `names_device` says whether a buffer of it named the device.
  bool Settle(const Call& call, bool names_device, Frame* frame, Settled* out) const;

  // Runs a settled call with the addresses and numbers of `call`, which matches it. Throws Refusal
  // for a number, LaunchFailure.
  void Run(const Settled& settled, const Call& call, void* stream) const;

  // The same in two parts, of which the second reads nothing of `call`: its arguments, then its
  // steps from `first` on.
  void Fit(const Settled& settled, const Call& call, LaunchBlock* block) const;
  void Run(const Settled& settled, LaunchBlock* block, void* stream, size_t first = 0) const;

  // Loads all code of every branch on a device by calling every kernel that has a `launch`
  // argument with launch = 0 and null addresses, and every plug-in with null addresses.
  void Prepare(int device) const;

  // The largest workspace of any branch that a call with these symbol values can take; symbols
  // not given range over their declaration, `sm_count` over `sm_counts`.
  int64_t WorkspaceBytes(const SymbolValue* given, int count, Interval sm_counts) const;

  // Writes the arguments of a kernel step into the frame. Exposed to describe a call.
  void BuildArgs(const Branch& branch, const Step& step, bool launch, Frame* frame) const;

 private:
  struct Fill {
    char* data = nullptr;
    int64_t bytes = 0;
  };

  // Makes the launches that a settled call has templates of. Returns the number of steps that are
  // done: fewer than all where the driver refused a launch, which is left to make or to explain.
  size_t Launch(const Settled& settled, const Call& call, void* stream) const;
  void FitAndRun(const Settled& settled, const Call& call, void* stream, size_t first) const;
  void RunChecks(const Frame& frame) const;
  void ChooseBranch(Frame* frame) const;
  void CarveWorkspace(const Call& call, Frame* frame) const;
  void BindView(const Branch& branch, const Arg& arg, bool launch, const Frame& frame,
                DLTensor* view, int64_t* axes) const;
  // With `strict` false, arguments that the kernel's wrapper refuses are reported as false.
  bool CallKernel(const Branch& branch, const Step& step, bool launch, bool strict,
                  const FfiAny* args) const;
  Fill BindFill(const Branch& branch, const Step& step, const Frame& frame) const;
  void RunFill(const Step& step, const Fill& fill, DLDevice device, void* stream) const;
  void RunActions(const Settled& settled, LaunchBlock* block, void* stream, size_t first) const;
  // Null for a call whose launches cannot be learnt.
  std::unique_ptr<const Settled::Launches> LearnLaunches(const Settled& settled,
                                                         const Call& call) const;
  void BindBackend(const Branch& branch, const Step& step, const Frame& frame) const;
  void RunBackend(const Branch& branch, const Step& step, const Frame& frame, void* stream) const;
  void PrepareBackend(const Branch& branch, const Step& step, int device) const;
  void RunSteps(const Branch& branch, Frame* frame, void* stream) const;
  bool AssumeCall(int guard, Frame* frame) const;

  Table table_;
  std::vector<std::shared_ptr<const Kernel>> kernels_;
  std::vector<Backend> backends_;
};

}  // namespace cudnn_aot
