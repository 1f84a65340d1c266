#include "plan.h"

#include <algorithm>
#include <cstring>

#include "arithmetic.h"
#include "cuda.h"
#include "error.h"
#include "ffi.h"
#include "layout.h"

namespace cudnn_aot {
namespace {

int64_t RoundUp(int64_t value, int64_t align) {
  return CheckedMul(CeilDivPositive(value, align), align);
}

// Whether the operand's elements leave room between them that a fill would write to.
bool HasGaps(const Operand& operand, const Slot& slot, const Frame& frame) {
  int64_t bytes = operand.dtype->bytes();
  for (int axis = 0; axis < operand.rank; ++axis) {
    bytes = CheckedMul(bytes, frame.dims[operand.base + axis]);
  }
  return bytes < slot.nbytes;
}

// A value as an expression gave it: "stride 8 on axis 0" where that is one of the operand's
// strides, or a choice that took one.
std::string InWords(int64_t value, const Node* node, const ExprPool& pool, const Operand* operand,
                    const Frame& frame) {
  if (node->op == Op::kSelect) node = &pool.at(node->b);
  int axis = operand != nullptr && node->op == Op::kStride ? node->a - operand->base : -1;
  if (axis < 0 || axis >= operand->rank || frame.strides[node->a] != value) {
    return std::to_string(value);
  }
  return "stride " + std::to_string(value) + " on axis " + std::to_string(axis);
}

}  // namespace

Plan::Plan(Table table, std::vector<std::shared_ptr<const Kernel>> kernels,
           std::vector<Backend> backends)
    : table_(std::move(table)), kernels_(std::move(kernels)), backends_(std::move(backends)) {
  NeedParts(table_, kernels_.size(), backends_.size());
}

void Plan::Resolve(const Call& call, DLDevice device, Frame* frame) const {
  frame->device = device;
  if (table_.cuda) frame->attrs[kAttrSmCount] = cuda::SmCount(device.device_id);
  BindPack(table_, call, frame);
  RunChecks(*frame);
  ChooseBranch(frame);
  CarveWorkspace(call, frame);
}

void Plan::RunChecks(const Frame& frame) const {
  const ExprPool& pool = table_.pool;
  Env env = frame.env();
  for (const Check& check : table_.checks) {
    const Operand* operand = check.operand < 0 ? nullptr : &table_.operands[check.operand];
    auto refuse = [&](const char* rule, const std::string& got, const std::string& want) {
      if (operand != nullptr) Refuse(rule, *operand, got, want);
      throw Refusal(rule, Refusal::kNoOperand, "got " + got + ", want " + want);
    };
    switch (check.rule) {
      case Check::Rule::kAlignment: {
        const char* data = frame.slots[check.operand].data;
        if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(check.bytes) != 0) {
          refuse("alignment", "address " + Hex(data),
                 "a multiple of " + std::to_string(check.bytes) + " bytes");
        }
        break;
      }
      case Check::Rule::kUnitStride: {
        int64_t stride = frame.strides[operand->base + check.axis];
        int64_t extent = frame.dims[operand->base + check.axis];
        if (stride != 1 && extent > 1) {
          refuse("unit_stride",
                 "stride " + std::to_string(stride) + " on axis " + std::to_string(check.axis),
                 "1");
        }
        break;
      }
      case Check::Rule::kDivisible: {
        int64_t value = pool.Eval(check.a, env);
        int64_t by = pool.Eval(check.b, env);
        if (by <= 0) RefuseDivisor(by);
        if (value % by != 0) {
          refuse("divisible", InWords(value, &pool.at(check.a), pool, operand, frame),
                 "a multiple of " + std::to_string(by));
        }
        break;
      }
      case Check::Rule::kRange: {
        int64_t value = pool.Eval(check.a, env);
        int64_t low = pool.Eval(check.min, env);
        int64_t high = pool.Eval(check.max, env);
        if (value < low || value > high) {
          refuse("range", InWords(value, &pool.at(check.a), pool, operand, frame),
                 std::to_string(low) + " to " + std::to_string(high));
        }
        break;
      }
      case Check::Rule::kEqual: {
        int64_t a = pool.Eval(check.a, env);
        int64_t b = pool.Eval(check.b, env);
        if (a != b) {
          refuse("equal", InWords(a, &pool.at(check.a), pool, operand, frame), std::to_string(b));
        }
        break;
      }
    }
  }
}

void Plan::ChooseBranch(Frame* frame) const {
  Env env = frame->env();
  for (const Guard& guard : table_.dispatch) {
    if (table_.pool.Holds(guard.split, env)) {
      frame->branch = guard.branch;
      return;
    }
  }
  std::string got;
  for (size_t i = 0; i < table_.operands.size(); ++i) {
    const Operand& operand = table_.operands[i];
    if (operand.kind == Operand::Kind::kScalar || !frame->slots[i].present) continue;
    got += (got.empty() ? "" : "; ") + OperandName(operand) + " " +
           List(frame->dims + operand.base, operand.rank) + " with strides " +
           List(frame->strides + operand.base, operand.rank) + " at " + Hex(frame->slots[i].data);
  }
  std::string want;
  for (const Guard& guard : table_.dispatch) {
    want += (want.empty() ? "'" : ", '") + table_.branches[guard.branch].name + "'";
  }
  throw Refusal("no_branch", Refusal::kNoOperand,
                "no branch takes this call: got " + got + ", want what one of " + want + " takes");
}

void Plan::CarveWorkspace(const Call& call, Frame* frame) const {
  const Branch& branch = table_.branches[frame->branch];
  frame->workspace = nullptr;
  frame->workspace_bytes = 0;
  if (branch.slices.empty()) return;
  Env env = frame->env();
  int64_t end = 0;
  for (size_t i = 0; i < branch.slices.size(); ++i) {
    const Slice& slice = branch.slices[i];
    int64_t bytes = table_.pool.Eval(slice.bytes, env);
    if (bytes < 0) {
      throw Refusal(
          "workspace", Refusal::kNoOperand,
          "slice '" + slice.name + "': got " + std::to_string(bytes) + " bytes, want none below 0");
    }
    frame->slice_offset[i] = RoundUp(end, slice.align);
    frame->slice_bytes[i] = bytes;
    end = CheckedAdd(frame->slice_offset[i], bytes);
  }
  frame->workspace_bytes = end;
  if (call.workspace == nullptr || end == 0) return;

  auto refuse = [&](const std::string& got, const std::string& want) {
    throw Refusal("workspace", Refusal::kNoOperand, "workspace: got " + got + ", want " + want);
  };
  const Buffer& given = *call.workspace;
  std::string want = std::to_string(end) + " bytes";
  if (given.kind == Buffer::Kind::kAbsent || given.data == nullptr) refuse("none", want);
  auto address = reinterpret_cast<uintptr_t>(given.data);
  auto misaligned = static_cast<int64_t>(address % static_cast<uintptr_t>(branch.align));
  if (given.kind == Buffer::Kind::kAddress) {  // of unknown capacity
    if (misaligned != 0) {
      refuse("address " + Hex(given.data),
             "a multiple of " + std::to_string(branch.align) + " bytes");
    }
    frame->workspace = given.data;
    return;
  }
  if (given.readonly) refuse("a read-only buffer", "one that can be written");
  bool managed = given.device.device_type == kDLCUDAManaged;
  bool host = given.device.device_type == kDLCPU || given.device.device_type == kDLCUDAHost;
  bool here = table_.cuda ? given.device.device_type == kDLCUDA &&
                                (given.device.device_id == frame->device.device_id ||
                                 given.device.device_id == kUnknownDevice)
                          : host;
  if (!managed && !here) refuse(DeviceName(given.device), DeviceName(frame->device));
  if (!IsDense(given)) refuse("a buffer with gaps", "a dense one");
  int64_t capacity = int64_t{given.dtype.bits} * given.dtype.lanes;
  for (int axis = 0; axis < given.ndim; ++axis) capacity = CheckedMul(capacity, given.shape[axis]);
  capacity /= 8;
  // A host array is rarely aligned: start at its first aligned byte, if it has room to spare.
  int64_t skip = misaligned == 0 ? 0 : branch.align - misaligned;
  if (capacity - skip < end) {
    refuse(std::to_string(capacity) + " bytes" +
               (skip == 0 ? ""
                          : " of which the first " + std::to_string(skip) +
                                " lie before a multiple of " + std::to_string(branch.align)),
           want);
  }
  frame->workspace = given.data + skip;
}

void Plan::BindView(const Branch& branch, const Arg& arg, bool launch, const Frame& frame,
                    DLTensor* view, int64_t* axes) const {
  Env env = frame.env();
  int rank = static_cast<int>(arg.dim.size());
  int64_t* dim = axes;
  int64_t* stride = axes + rank;
  int64_t width = arg.dtype->bytes();
  int64_t least = 0;  // extent
  for (int axis = 0; axis < rank; ++axis) {
    dim[axis] = table_.pool.Eval(arg.dim[axis], env);
    stride[axis] = table_.pool.Eval(arg.stride[axis], env);
    least = std::min(least, dim[axis]);
  }
  int64_t offset = arg.value < 0 ? 0 : table_.pool.Eval(arg.value, env);
  char* data = nullptr;
  if (launch) {
    Reach held;
    if (arg.operand >= 0) {
      const Slot& slot = frame.slots[arg.operand];
      const Operand& operand = table_.operands[arg.operand];
      if (!slot.present) {
        Refuse("presence", operand, "nothing", "a buffer for branch '" + branch.name + "'");
      }
      data = slot.data;
      held = {slot.below, slot.nbytes - slot.below};
    } else {
      data = frame.workspace + frame.slice_offset[arg.slice];
      held.above = frame.slice_bytes[arg.slice];
    }
    // A view that leaves its buffer is a mistake of the table, caught here before a kernel can
    // write there.
    auto refuse = [&](const char* rule, const std::string& got, const std::string& want) {
      std::string where = got + " in branch '" + branch.name + "'";
      if (arg.operand >= 0) Refuse(rule, table_.operands[arg.operand], where, want);
      throw Refusal(
          rule, Refusal::kNoOperand,
          "slice '" + branch.slices[arg.slice].name + "': got " + where + ", want " + want);
    };
    if (least < 0) refuse("extents", "a view of extents " + List(dim, rank), "none below 0");
    Reach needed = ReachOf(dim, stride, rank, width);
    if (needed.above > 0) {
      int64_t shift = CheckedMul(offset, width);
      int64_t first = CheckedSub(shift, needed.below);
      int64_t end = CheckedAdd(shift, needed.above);
      if (first < -held.below || end > held.above) {
        refuse("capacity",
               "a view of bytes " + std::to_string(first) + " to " + std::to_string(end),
               "one within " + std::to_string(-held.below) + " to " + std::to_string(held.above));
      }
      data += shift;
    }
  }
  *view = DLTensor{data, frame.device, rank, arg.dtype->dl, dim, stride, 0};
}

void Plan::BuildArgs(const Branch& branch, const Step& step, bool launch, Frame* frame) const {
  Env env = frame->env();
  FfiAny* out = frame->args;
  DLTensor* view = frame->views;
  int64_t* axes = frame->view_axes;
  for (const Arg& arg : step.args) {
    out->zero_padding = 0;
    switch (arg.kind) {
      case Arg::Kind::kTensor:
        BindView(branch, arg, launch, *frame, view, axes);
        axes += 2 * arg.dim.size();
        out->type_index = kFfiTensorPtr;
        out->v_ptr = view++;
        break;
      case Arg::Kind::kInt:
        out->type_index = kFfiInt;
        out->v_int64 = table_.pool.Eval(arg.value, env);
        break;
      case Arg::Kind::kFloat:
        out->type_index = kFfiFloat;
        out->v_float64 = arg.number;
        break;
      case Arg::Kind::kScalar:
        if (table_.operands[arg.operand].dtype->is_float()) {
          out->type_index = kFfiFloat;
          out->v_float64 = frame->scalars[arg.operand].number;
        } else {
          out->type_index = kFfiInt;
          out->v_int64 = frame->scalars[arg.operand].integer;
        }
        break;
      case Arg::Kind::kNone:
        out->type_index = kFfiNone;
        out->v_int64 = 0;
        break;
      case Arg::Kind::kLaunch:
        out->type_index = kFfiInt;
        out->v_int64 = launch ? 1 : 0;
        break;
    }
    ++out;
  }
}

bool Plan::CallKernel(const Branch& branch, const Step& step, bool launch, bool strict,
                      const FfiAny* args) const {
  const Kernel& kernel = *kernels_[step.kernel];
  FfiAny result{};
  int code = kernel.call(nullptr, args, static_cast<int32_t>(step.args.size()), &result);
  if (code == 0) {
    ffi::Release(result);
    return true;
  }
  ffi::Raised raised = ffi::TakeRaised();
  if (!strict && (raised.kind == "ValueError" || raised.kind == "TypeError")) return false;
  throw LaunchFailure("kernel " + std::to_string(step.kernel) + " of branch '" + branch.name +
                      "' failed to " + (launch ? "launch: " : "prepare: ") + raised.kind + ": " +
                      raised.message);
}

Plan::Fill Plan::BindFill(const Branch& branch, const Step& step, const Frame& frame) const {
  Fill fill;
  int64_t capacity = 0;
  bool gaps = false;
  if (step.operand >= 0) {
    const Slot& slot = frame.slots[step.operand];
    if (!slot.present) return fill;
    fill.data = slot.data;
    capacity = slot.nbytes - slot.below;
    gaps = slot.own_strides && HasGaps(table_.operands[step.operand], slot, frame);
  } else {
    fill.data = frame.workspace + frame.slice_offset[step.slice];
    capacity = frame.slice_bytes[step.slice];
  }
  fill.bytes = table_.pool.Eval(step.bytes, frame.env());
  if (fill.bytes < 0 || fill.bytes > capacity || fill.bytes % step.width != 0) {
    throw Refusal("capacity",
                  step.operand >= 0 ? table_.operands[step.operand].uid : Refusal::kNoOperand,
                  "fill in branch '" + branch.name + "': got " + std::to_string(fill.bytes) +
                      " bytes, want a multiple of " + std::to_string(step.width) + " up to " +
                      std::to_string(capacity));
  }
  if (gaps && fill.bytes > 0) {
    const Operand& operand = table_.operands[step.operand];
    Refuse("capacity", operand,
           "strides " + List(frame.strides + operand.base, operand.rank) +
               " for a fill in branch '" + branch.name + "'",
           "a buffer without gaps");
  }
  return fill;
}

void Plan::RunFill(const Step& step, const Fill& fill, DLDevice device, void* stream) const {
  if (fill.bytes == 0) return;
  if (table_.cuda) {
    cuda::Fill(device.device_id, fill.data, step.pattern, step.width, fill.bytes, stream);
    return;
  }
  if (step.width == 1) {
    std::memset(fill.data, static_cast<int>(step.pattern), static_cast<size_t>(fill.bytes));
    return;
  }
  for (int64_t at = 0; at < fill.bytes; at += step.width) {  // little endian, as the targets are
    std::memcpy(fill.data + at, &step.pattern, static_cast<size_t>(step.width));
  }
}

void Plan::RunSteps(const Branch& branch, Frame* frame, void* stream) const {
  if (branch.steps.size() > 1) {
    // A refusal must find nothing launched, so every step is bound before the first one runs.
    for (const Step& step : branch.steps) {
      if (step.kind == Step::Kind::kFill) {
        BindFill(branch, step, *frame);
      } else if (step.kind == Step::Kind::kBackend) {
        BindBackend(branch, step, *frame);
      } else {
        BuildArgs(branch, step, true, frame);
      }
    }
  }
  for (const Step& step : branch.steps) {
    if (step.kind == Step::Kind::kFill) {
      RunFill(step, BindFill(branch, step, *frame), frame->device, stream);
    } else if (step.kind == Step::Kind::kBackend) {
      BindBackend(branch, step, *frame);
      RunBackend(branch, step, *frame, stream);
    } else {
      BuildArgs(branch, step, true, frame);
      CallKernel(branch, step, true, true, frame->args);
    }
  }
}

void Plan::Run(Frame* frame, void* stream) const {
  const Branch& branch = table_.branches[frame->branch];
  if (branch.steps.empty()) return;
  if (!table_.cuda) return RunSteps(branch, frame, nullptr);
  cuda::DeviceScope on_device(frame->device.device_id, stream);
  ffi::StreamScope on_stream(frame->device, stream);
  RunSteps(branch, frame, stream);
}

}  // namespace cudnn_aot
