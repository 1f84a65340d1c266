#include "settled.h"

#include <algorithm>
#include <cstring>

#include "cuda.h"
#include "ffi.h"
#include "plan.h"

namespace cudnn_aot {
namespace {

bool SameAxes(const int64_t* a, const int64_t* b, int count) {
  for (int i = 0; i < count; ++i) {  // a few: a call would take longer
    if (a[i] != b[i]) return false;
  }
  return true;
}

bool SameDevice(DLDevice a, DLDevice b) {
  return a.device_type == b.device_type && a.device_id == b.device_id;
}

bool SameType(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

uintptr_t AddressOf(const Buffer& buffer) { return reinterpret_cast<uintptr_t>(buffer.data); }

}  // namespace

uintptr_t Settled::WorkspaceOf(const Call& call) const {
  if (!needs_workspace_) return 0;
  uintptr_t address = AddressOf(*call.workspace);
  return address + (-address & workspace_mask_);
}

Settled::Bound Settled::Describe(const Buffer& buffer, uintptr_t mask) {
  Bound out{};
  out.kind = buffer.kind;
  out.is_null = buffer.data == nullptr;
  out.remainder = AddressOf(buffer) & mask;
  out.axes = axes_.size();
  if (buffer.kind != Buffer::Kind::kTensor) return out;
  out.readonly = buffer.readonly;
  out.has_strides = buffer.strides != nullptr;
  out.dtype = buffer.dtype;
  out.device = buffer.device;
  out.ndim = buffer.ndim;
  axes_.insert(axes_.end(), buffer.shape, buffer.shape + buffer.ndim);
  if (out.has_strides) axes_.insert(axes_.end(), buffer.strides, buffer.strides + buffer.ndim);
  return out;
}

bool Settled::Same(const Bound& bound, const Buffer& buffer, uintptr_t mask) const {
  if (bound.kind != buffer.kind) return false;
  if (buffer.kind == Buffer::Kind::kAbsent) return true;
  if ((AddressOf(buffer) & mask) != bound.remainder || (buffer.data == nullptr) != bound.is_null) {
    return false;
  }
  if (buffer.kind != Buffer::Kind::kTensor) return true;
  const int64_t* axes = axes_.data() + bound.axes;
  return bound.ndim == buffer.ndim && bound.readonly == buffer.readonly &&
         bound.has_strides == (buffer.strides != nullptr) && SameType(bound.dtype, buffer.dtype) &&
         SameDevice(bound.device, buffer.device) && SameAxes(axes, buffer.shape, buffer.ndim) &&
         (!bound.has_strides || SameAxes(axes + buffer.ndim, buffer.strides, buffer.ndim));
}

bool Settled::Matches(const Table& table, const Call& call) const {
  if (call.num_overrides != 0) return false;
  for (int i : table.tensors) {
    if (!Same(operands_[i], call.buffers[i], table.operands[i].address_mask)) return false;
  }
  if (needs_workspace_ && !Same(workspace_, *call.workspace, workspace_mask_)) return false;
  if (symbols_.size() != static_cast<size_t>(call.num_symbols)) return false;
  for (size_t i = 0; i < symbols_.size(); ++i) {
    if (symbols_[i].symbol != call.symbols[i].symbol ||
        symbols_[i].value != call.symbols[i].value) {
      return false;
    }
  }
  return true;
}

bool Settled::Admits(const Table& table, const Call& call) const {
  auto keeps = [](const Bound& bound, const Buffer& buffer, uintptr_t mask) {
    return buffer.kind == Buffer::Kind::kAbsent || ((AddressOf(buffer) & mask) == bound.remainder &&
                                                    (buffer.data == nullptr) == bound.is_null);
  };
  for (int i : table.tensors) {
    if (!keeps(operands_[i], call.buffers[i], table.operands[i].address_mask)) return false;
  }
  if (!needs_workspace_ || Same(workspace_, *call.workspace, workspace_mask_)) return true;
  // Of an address nothing but its alignment was ever asked.
  return call.workspace->kind == Buffer::Kind::kAddress && call.workspace->data != nullptr &&
         (AddressOf(*call.workspace) & workspace_mask_) == 0;
}

bool Plan::Settle(const Call& call, bool names_device, Frame* frame, Settled* out) const {
  const Branch& branch = table_.branches[frame->branch];
  size_t num_args = 0, num_axes = 0, num_views = 0;
  for (const Step& step : branch.steps) {
    if (step.kind == Step::Kind::kBackend) return false;
    num_args += step.args.size();
    for (const Arg& arg : step.args) {
      if (arg.kind != Arg::Kind::kTensor) continue;
      ++num_views;
      num_axes += 2 * arg.dim.size();
    }
  }
  size_t bytes = num_args * sizeof(FfiAny) + num_views * sizeof(DLTensor) +
                 branch.steps.size() * sizeof(char*);
  if (!table_.can_settle || bytes > LaunchBlock::kBytes) return false;

  out->operands_.clear();
  out->axes_.clear();
  for (size_t i = 0; i < table_.operands.size(); ++i) {
    out->operands_.push_back(out->Describe(call.buffers[i], table_.operands[i].address_mask));
  }
  out->needs_workspace_ = frame->workspace != nullptr;
  if (out->needs_workspace_) {
    out->workspace_mask_ = static_cast<uintptr_t>(branch.align) - 1;
    out->workspace_ = out->Describe(*call.workspace, out->workspace_mask_);
  }
  out->symbols_.assign(call.symbols, call.symbols + call.num_symbols);
  out->device_ = frame->device;
  out->names_device_ = names_device;

  out->branch_ = &branch;
  out->actions_.clear();
  out->args_.clear();
  out->tensors_.clear();
  out->views_.clear();
  out->numbers_.clear();
  out->view_axes_.resize(num_axes);
  int64_t* axes = out->view_axes_.data();
  auto place = [&](int operand, const void* data) {
    const char* base = operand >= 0 ? frame->slots[operand].data : frame->workspace;
    auto offset = reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(base);
    return Settled::Place{operand, static_cast<int64_t>(offset)};
  };
  for (const Step& step : branch.steps) {
    if (step.kind == Step::Kind::kFill) {
      Fill fill = BindFill(branch, step, *frame);
      out->actions_.push_back({&step, 0, place(step.operand, fill.data), fill.bytes});
      continue;
    }
    out->actions_.push_back({&step, out->args_.size(), {-1, 0}, 0});
    BuildArgs(branch, step, true, frame);
    const DLTensor* view = frame->views;
    for (size_t i = 0; i < step.args.size(); ++i) {
      const Arg& arg = step.args[i];
      if (arg.kind == Arg::Kind::kScalar) {
        out->numbers_.push_back({out->args_.size(), arg.operand});
      } else if (arg.kind == Arg::Kind::kTensor) {
        out->views_.push_back({out->args_.size(), place(arg.operand, view->data)});
        DLTensor tensor = *view++;
        std::copy_n(tensor.shape, tensor.ndim, axes);
        std::copy_n(tensor.strides, tensor.ndim, axes + tensor.ndim);
        tensor.shape = axes;
        tensor.strides = axes + tensor.ndim;
        axes += 2 * tensor.ndim;
        out->tensors_.push_back(tensor);
      }
      out->args_.push_back(frame->args[i]);
    }
  }
  out->runs_.store(0, std::memory_order_relaxed);
  out->launches_.store(nullptr, std::memory_order_relaxed);
  out->learnt_.reset();
  return true;
}

void Plan::Run(const Settled& settled, const Call& call, void* stream) const {
  size_t done = Launch(settled, call, stream);
  if (done < settled.actions_.size()) FitAndRun(settled, call, stream, done);
}

// Apart, so that a learnt launch does not pay for the block.
__attribute__((noinline)) void Plan::FitAndRun(const Settled& settled, const Call& call,
                                               void* stream, size_t first) const {
  LaunchBlock block;
  Fit(settled, call, &block);
  Run(settled, &block, stream, first);
}

void Plan::Fit(const Settled& settled, const Call& call, LaunchBlock* block) const {
  uintptr_t workspace = settled.WorkspaceOf(call);
  auto address = [&](const Settled::Place& place) {
    uintptr_t base = place.operand < 0 ? workspace : AddressOf(call.buffers[place.operand]);
    return reinterpret_cast<char*>(base + static_cast<uintptr_t>(place.offset));
  };
  auto* args = reinterpret_cast<FfiAny*>(block->bytes);
  auto* tensors = reinterpret_cast<DLTensor*>(args + settled.args_.size());
  auto* fills = reinterpret_cast<char**>(tensors + settled.tensors_.size());
  std::copy_n(settled.args_.data(), settled.args_.size(), args);
  for (size_t i = 0; i < settled.views_.size(); ++i) {
    const Settled::View& view = settled.views_[i];
    tensors[i] = settled.tensors_[i];
    tensors[i].data = address(view.place);
    args[view.arg].v_ptr = &tensors[i];
  }
  for (const Settled::Action& action : settled.actions_) *fills++ = address(action.place);
  for (int i : table_.scalars) {  // every number is checked, those that no kernel takes too
    Scalar scalar;
    BindScalar(table_.operands[i], call.buffers[i], &scalar);
    for (const Settled::Number& number : settled.numbers_) {
      if (number.operand != i) continue;
      if (args[number.arg].type_index == kFfiFloat) {
        args[number.arg].v_float64 = scalar.number;
      } else {
        args[number.arg].v_int64 = scalar.integer;
      }
    }
  }
}

void Plan::RunActions(const Settled& settled, LaunchBlock* block, void* stream,
                      size_t first) const {
  auto* args = reinterpret_cast<FfiAny*>(block->bytes);
  auto* tensors = reinterpret_cast<DLTensor*>(args + settled.args_.size());
  auto* fills = reinterpret_cast<char**>(tensors + settled.tensors_.size());
  for (size_t i = first; i < settled.actions_.size(); ++i) {
    const Settled::Action& action = settled.actions_[i];
    const Step& step = *action.step;
    if (step.kind == Step::Kind::kKernel) {
      CallKernel(*settled.branch_, step, true, true, args + action.first_arg);
    } else {
      RunFill(step, {fills[i], action.bytes}, settled.device_, stream);
    }
  }
}

void Plan::Run(const Settled& settled, LaunchBlock* block, void* stream, size_t first) const {
  if (settled.actions_.empty()) return;
  if (!table_.cuda) return RunActions(settled, block, nullptr, first);
  cuda::DeviceScope on_device(settled.device_.device_id, stream);
  ffi::StreamScope on_stream(settled.device_, stream);
  RunActions(settled, block, stream, first);
}

}  // namespace cudnn_aot
