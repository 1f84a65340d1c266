#include "pack.h"

#include <algorithm>
#include <cstdio>

#include "arithmetic.h"
#include "symbols.h"

namespace cudnn_aot {
namespace {

constexpr int kMaxBufferRank = 64;

int64_t BitsPerSlot(DLDataType dtype) { return int64_t{dtype.bits} * dtype.lanes; }

// The strides of a buffer, with those of a contiguous one written into `scratch`.
const int64_t* StridesOf(const Buffer& buffer, int64_t* scratch) {
  if (buffer.strides != nullptr) return buffer.strides;
  int64_t stride = 1;
  for (int axis = buffer.ndim - 1; axis >= 0; --axis) {
    scratch[axis] = stride;
    stride = CheckedMul(stride, std::max<int64_t>(buffer.shape[axis], 1));
  }
  return scratch;
}

int64_t Elements(const Buffer& buffer) {
  int64_t count = 1;
  for (int axis = 0; axis < buffer.ndim; ++axis) count = CheckedMul(count, buffer.shape[axis]);
  return count;
}

std::string DescribeBuffer(const Buffer& buffer) {
  std::string out = Describe(buffer.dtype) + " " + List(buffer.shape, buffer.ndim);
  if (buffer.strides != nullptr && !IsContiguous(buffer)) {
    out += " with strides " + List(buffer.strides, buffer.ndim);
  }
  return out;
}

// One operand of the frame, during normalisation.
class Normaliser {
 public:
  Normaliser(const Operand& operand, const Buffer& buffer, Frame* frame, Slot* slot)
      : operand_(operand),
        buffer_(buffer),
        slot_(slot),
        dim_(frame->dims + operand.base),
        stride_(frame->strides + operand.base),
        rank_(operand.rank) {}

  void Run();
  void RunOverridden(const Override& given);

 private:
  bool HasDeclaredExtents() const {
    return buffer_.ndim == rank_ && std::equal(dim_, dim_ + rank_, buffer_.shape);
  }
  // Maps the declared axes that move memory to the buffer's axes, in order; false when the
  // extents differ by more than unit axes.
  bool MatchUpToUnitAxes(int* axis_of) const;
  void KeepOwnStrides(const int* axis_of);
  bool HasZeroExtent() const { return std::find(dim_, dim_ + rank_, 0) != dim_ + rank_; }
  std::string Declared() const {
    return std::string(operand_.dtype->name) + " " + List(dim_, rank_);
  }
  int64_t DeclaredBytes() const { return SpanBytes(dim_, stride_, rank_, operand_.dtype->bytes()); }

  const Operand& operand_;
  const Buffer& buffer_;
  Slot* slot_;
  int64_t* dim_;
  int64_t* stride_;
  int rank_;
};

bool Normaliser::MatchUpToUnitAxes(int* axis_of) const {
  int next = 0;
  for (int axis = 0; axis < rank_; ++axis) {
    axis_of[axis] = -1;
    if (dim_[axis] == 1) continue;
    while (next < buffer_.ndim && buffer_.shape[next] == 1) ++next;
    if (next == buffer_.ndim || buffer_.shape[next] != dim_[axis]) return false;
    axis_of[axis] = next++;
  }
  return std::all_of(buffer_.shape + next, buffer_.shape + buffer_.ndim,
                     [](int64_t extent) { return extent == 1; });
}

void Normaliser::KeepOwnStrides(const int* axis_of) {
  int64_t scratch[kMaxBufferRank];
  const int64_t* own = StridesOf(buffer_, scratch);
  if (!HasZeroExtent()) {
    for (int axis = 0; axis < rank_; ++axis) {
      if (dim_[axis] != 1) stride_[axis] = own[axis_of == nullptr ? axis : axis_of[axis]];
    }
  }
  slot_->nbytes = DeclaredBytes();  // of the declared extents under the strides just taken
}

void Normaliser::Run() {
  slot_->data = buffer_.data;
  if (buffer_.kind == Buffer::Kind::kAddress) {
    slot_->nbytes = DeclaredBytes();
    return;
  }
  if (buffer_.ndim > kMaxBufferRank) {
    Refuse("extents", operand_, std::to_string(buffer_.ndim) + " axes", Declared());
  }
  bool same_width = BitsPerSlot(buffer_.dtype) == BitsPerSlot(operand_.dtype->dl);
  if (HasDeclaredExtents()) {
    if (!same_width) Refuse("dtype", operand_, DescribeBuffer(buffer_), Declared());
    KeepOwnStrides(nullptr);
    return;
  }
  int axis_of[kMaxRank];
  if (MatchUpToUnitAxes(axis_of)) {
    // These are the declared extents, spelled otherwise, so another width is another dtype.
    if (!same_width) Refuse("dtype", operand_, DescribeBuffer(buffer_), Declared());
    if (!IsContiguous(buffer_)) {  // a transposed view, dense or not, must not be read straight
      KeepOwnStrides(axis_of);
      return;
    }
  } else if (!IsDense(buffer_)) {
    Refuse("extents", operand_, DescribeBuffer(buffer_), Declared());
  }
  int64_t bytes = CheckedMul(Elements(buffer_), BitsPerSlot(buffer_.dtype)) / 8;
  int64_t declared = DeclaredBytes();
  if (bytes < declared && !operand_.ragged) {
    // Of the declared rank it says, axis by axis, what it holds: then the extents are wrong.
    bool same_rank = buffer_.ndim == rank_;
    Refuse(same_rank ? "extents" : "capacity", operand_,
           DescribeBuffer(buffer_) + " of " + std::to_string(bytes) + " bytes",
           Declared() + " of " + std::to_string(declared) + " bytes");
  }
  slot_->nbytes = bytes;
}

void Normaliser::RunOverridden(const Override& given) {
  // The override is the description; the buffer supplies the address and must hold it.
  slot_->data = buffer_.data;
  if (!HasZeroExtent()) {
    for (int axis = 0; axis < rank_; ++axis) {
      if (dim_[axis] != 1) stride_[axis] = given.stride[axis];
    }
  }
  int64_t needed = DeclaredBytes();
  slot_->nbytes = needed;
  if (buffer_.kind == Buffer::Kind::kAddress) return;
  int64_t scratch[kMaxBufferRank];
  if (buffer_.ndim > kMaxBufferRank) {
    Refuse("extents", operand_, std::to_string(buffer_.ndim) + " axes", Declared());
  }
  int64_t bits = BitsPerSlot(buffer_.dtype);
  slot_->nbytes =
      bits % 8 == 0 ? SpanBytes(buffer_.shape, StridesOf(buffer_, scratch), buffer_.ndim, bits / 8)
                    : Elements(buffer_) * bits / 8;
  if (slot_->nbytes < needed) {
    Refuse("capacity", operand_,
           std::to_string(slot_->nbytes) + " bytes in " + DescribeBuffer(buffer_),
           std::to_string(needed) + " for the override " + Declared() + " with strides " +
               List(stride_, rank_));
  }
}

void BindScalar(const Operand& operand, const Buffer& buffer, Scalar* out) {
  const DType& dtype = *operand.dtype;
  if (buffer.kind == Buffer::Kind::kAbsent) {
    if (!operand.has_default) Refuse("presence", operand, "nothing", "a number");
    *out = {operand.number, operand.integer};
    return;
  }
  if (buffer.kind != Buffer::Kind::kNumber) {
    Refuse("dtype", operand, "a tensor", std::string("a number for ") + dtype.name);
  }
  if (dtype.is_float()) {
    *out = {RoundTo(dtype, buffer.number), 0};
  } else if (buffer.is_integer) {
    *out = {buffer.number, buffer.integer};
  } else {
    Refuse("dtype", operand, std::to_string(buffer.number),
           std::string("an integer for ") + dtype.name);
  }
}

const Override* FindOverride(const Call& call, int operand) {
  for (int i = 0; i < call.num_overrides; ++i) {
    if (call.overrides[i].operand == operand) return &call.overrides[i];
  }
  return nullptr;
}

}  // namespace

Frame::Frame(const Table& table) {
  // Widest alignment first, so that nothing needs padding.
  const struct {
    void** field;
    size_t bytes;
  } parts[] = {
      {reinterpret_cast<void**>(&args), sizeof(FfiAny) * table.max_args},
      {reinterpret_cast<void**>(&views), sizeof(DLTensor) * table.max_views},
      {reinterpret_cast<void**>(&slots), sizeof(Slot) * table.operands.size()},
      {reinterpret_cast<void**>(&scalars), sizeof(Scalar) * table.operands.size()},
      {reinterpret_cast<void**>(&symbols), sizeof(int64_t) * table.symbols.size()},
      {reinterpret_cast<void**>(&dims), sizeof(int64_t) * table.total_rank},
      {reinterpret_cast<void**>(&strides), sizeof(int64_t) * table.total_rank},
      {reinterpret_cast<void**>(&slice_offset), sizeof(int64_t) * table.max_slices},
      {reinterpret_cast<void**>(&slice_bytes), sizeof(int64_t) * table.max_slices},
      {reinterpret_cast<void**>(&view_axes), 2 * sizeof(int64_t) * table.max_view_axes},
      {reinterpret_cast<void**>(&bound), sizeof(bool) * table.symbols.size()},
  };
  size_t total = 0;
  for (const auto& part : parts) total += part.bytes;
  char* next = inline_;
  if (total > kInline) {
    heap_ = std::make_unique<char[]>(total);
    next = heap_.get();
  }
  for (const auto& part : parts) {
    *part.field = next;
    next += part.bytes;
  }
  std::fill_n(bound, table.symbols.size(), false);
}

int64_t SpanBytes(const int64_t* dim, const int64_t* stride, int rank, int64_t element_bytes) {
  int64_t last = 0;
  for (int axis = 0; axis < rank; ++axis) {
    if (dim[axis] == 0) return 0;
    int64_t step = stride[axis] < 0 ? CheckedSub(0, stride[axis]) : stride[axis];
    last = CheckedAdd(last, CheckedMul(dim[axis] - 1, step));
  }
  return CheckedMul(CheckedAdd(last, 1), element_bytes);
}

std::string OperandName(const Operand& operand) {
  std::string out = "operand " + std::to_string(operand.uid);
  return operand.name.empty() ? out : out + " '" + operand.name + "'";
}

void Refuse(const char* rule, const Operand& operand, const std::string& got,
            const std::string& want) {
  throw Refusal(rule, operand.uid, OperandName(operand) + ": got " + got + ", want " + want);
}

std::string List(const int64_t* values, int count) {
  std::string out = "[";
  for (int i = 0; i < count; ++i) out += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return out + "]";
}

bool IsContiguous(const Buffer& buffer) {
  if (buffer.strides == nullptr) return true;
  if (std::find(buffer.shape, buffer.shape + buffer.ndim, 0) != buffer.shape + buffer.ndim) {
    return true;
  }
  int64_t expected = 1;
  for (int axis = buffer.ndim - 1; axis >= 0; --axis) {
    if (buffer.shape[axis] == 1) continue;
    if (buffer.strides[axis] != expected) return false;
    expected *= buffer.shape[axis];
  }
  return true;
}

bool IsDense(const Buffer& buffer) {
  if (IsContiguous(buffer)) return true;
  if (buffer.ndim > kMaxBufferRank) return false;
  int order[kMaxBufferRank];
  int count = 0;
  for (int axis = 0; axis < buffer.ndim; ++axis) {
    if (buffer.shape[axis] != 1) order[count++] = axis;
  }
  std::sort(order, order + count,
            [&](int a, int b) { return buffer.strides[a] < buffer.strides[b]; });
  int64_t expected = 1;
  for (int i = 0; i < count; ++i) {
    if (buffer.strides[order[i]] != expected) return false;
    expected *= buffer.shape[order[i]];
  }
  return true;
}

std::string DeviceName(DLDevice device) {
  switch (device.device_type) {
    case kDLCPU:
      return "cpu";
    case kDLCUDA:
      return device.device_id == kUnknownDevice ? "cuda"
                                                : "cuda:" + std::to_string(device.device_id);
    case kDLCUDAHost:
      return "pinned host memory";
    case kDLCUDAManaged:
      return "managed memory";
    default:
      return "DLPack device type " + std::to_string(device.device_type);
  }
}

std::string Hex(const void* address) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx",
                static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(address)));
  return text;
}

bool FindDevice(const Table& table, const Call& call, DLDevice* device) {
  int first = -1;
  for (size_t i = 0; i < table.operands.size(); ++i) {
    const Operand& operand = table.operands[i];
    const Buffer& buffer = call.buffers[i];
    if (operand.kind == Operand::Kind::kScalar) continue;
    if (buffer.kind == Buffer::Kind::kAbsent) {
      if (operand.optional) continue;
      Refuse("presence", operand, "nothing", "a buffer");
    }
    if (buffer.kind == Buffer::Kind::kNumber) Refuse("dtype", operand, "a number", "a buffer");
    if (buffer.readonly && operand.kind == Operand::Kind::kOutput) {
      Refuse("readonly", operand, "a read-only buffer", "one that can be written");
    }
    if (buffer.kind == Buffer::Kind::kAddress) continue;
    int32_t type = buffer.device.device_type;
    if (type == kDLCUDAManaged) continue;  // reached from the host and from every device
    if (!table.cuda) {
      if (type != kDLCPU && type != kDLCUDAHost) {
        Refuse("device", operand, DeviceName(buffer.device), "cpu");
      }
      continue;
    }
    if (type != kDLCUDA) Refuse("device", operand, DeviceName(buffer.device), "cuda");
    if (buffer.device.device_id == kUnknownDevice) continue;
    if (first < 0) {
      first = static_cast<int>(i);
      *device = buffer.device;
    } else if (buffer.device.device_id != device->device_id) {
      Refuse("device", operand, DeviceName(buffer.device),
             DeviceName(*device) + ", where " + OperandName(table.operands[first]) + " is");
    }
  }
  if (!table.cuda) *device = {kDLCPU, 0};
  return !table.cuda || first >= 0;
}

void ResolveDeclarations(const Table& table, Frame* frame) {
  Env env = frame->env();
  for (const Operand& operand : table.operands) {
    for (int axis = 0; axis < operand.rank; ++axis) {
      int64_t extent = table.pool.Eval(operand.dim[axis], env);
      if (extent < 0) {
        Refuse("extents", operand, "extent " + std::to_string(extent), "none below 0");
      }
      frame->dims[operand.base + axis] = extent;
      frame->strides[operand.base + axis] = table.pool.Eval(operand.stride[axis], env);
    }
  }
}

void BindPack(const Table& table, const Call& call, Frame* frame) {
  if (!table.symbols.empty()) BindSymbols(table, call, frame);
  ResolveDeclarations(table, frame);
  for (size_t i = 0; i < table.operands.size(); ++i) {
    const Operand& operand = table.operands[i];
    const Buffer& buffer = call.buffers[i];
    if (operand.kind == Operand::Kind::kScalar) {
      BindScalar(operand, buffer, &frame->scalars[i]);
      frame->slots[i] = Slot{};
      continue;
    }
    Slot& slot = frame->slots[i];
    slot = Slot{nullptr, 0, buffer.kind != Buffer::Kind::kAbsent};
    const Override* given = call.num_overrides == 0 ? nullptr : FindOverride(call, i);
    if (given != nullptr) {
      const int64_t* declared = frame->dims + operand.base;
      if (!std::equal(given->shape.begin(), given->shape.end(), declared,
                      declared + operand.rank)) {
        Refuse("extents", operand,
               "override shape " + List(given->shape.data(), static_cast<int>(given->shape.size())),
               List(declared, operand.rank));
      }
    }
    if (!slot.present) continue;
    Normaliser normaliser(operand, buffer, frame, &slot);
    if (given != nullptr) {
      normaliser.RunOverridden(*given);
    } else {
      normaliser.Run();
    }
    if (slot.data == nullptr && slot.nbytes > 0) {
      Refuse("presence", operand, "a null address", "a buffer");
    }
    auto width = static_cast<uintptr_t>(operand.dtype->bytes());
    if (reinterpret_cast<uintptr_t>(slot.data) % width != 0) {
      Refuse("alignment", operand, "address " + Hex(slot.data),
             "a multiple of the " + std::to_string(width) + " bytes of " + operand.dtype->name);
    }
  }
}

}  // namespace cudnn_aot
