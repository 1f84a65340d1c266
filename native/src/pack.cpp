#include "pack.h"

#include <algorithm>
#include <cstdio>

#include "arithmetic.h"
#include "symbols.h"

namespace cudnn_aot {
namespace {

constexpr int kMaxBufferRank = 64;

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
  for (int axis = 0; axis < buffer.ndim; ++axis) {
    count = CheckedMul(count, std::max<int64_t>(buffer.shape[axis], 0));
  }
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
        symbols_(frame->symbols),
        dim_(frame->dims + operand.base),
        stride_(frame->strides + operand.base),
        rank_(operand.rank) {}

  // Both refuse elements that do not fill slots.
  void Run(const Table& table, const Call& call);
  void RunOverridden(const Table& table, const Override& given);

 private:
  bool HasDeclaredExtents() const {
    return buffer_.ndim == rank_ && std::equal(dim_, dim_ + rank_, buffer_.shape);
  }
  // Maps the axes of `dim` (the declared extents, say) that move memory to the buffer's axes, in
  // order; false when the extents differ by more than unit axes.
  bool MatchUpToUnitAxes(const int64_t* dim, int* axis_of) const;
  void NeedCompatible(bool spells_declared_extents) const;
  void NeedRank() const;
  void NeedSymbolValues(const Table& table, const Call& call) const;
  void NeedWholeSlots(const Table& table) const;
  void NeedSlots(const Table& table) const;
  void PackOverride(const Override& given);
  void TakeDeclaration();
  void KeepOwnStrides(const int* axis_of);
  bool StaysWithin(const int64_t* own) const;
  bool HasZeroExtent() const { return std::find(dim_, dim_ + rank_, 0) != dim_ + rank_; }
  bool IsPacked() const { return operand_.packed_axis >= 0; }
  std::string Declared() const {
    return std::string(operand_.dtype->name) + (IsPacked() ? " slots " : " ") + List(dim_, rank_);
  }
  std::string SlotRule() const {
    std::string count = std::to_string(operand_.dtype->elements_per_slot());
    return "multiples of " + count +
           " for the extent along the axis of stride 1 and for the other strides: a slot has " +
           count + " elements";
  }
  Reach DeclaredReach() const { return ReachOf(operand_, dim_, stride_); }
  void TakeReach(Reach reach) {
    slot_->nbytes = reach.bytes();
    slot_->below = reach.below;
  }

  const Operand& operand_;
  const Buffer& buffer_;
  Slot* slot_;
  const int64_t* symbols_;
  int64_t* dim_;
  int64_t* stride_;
  int rank_;
};

bool Normaliser::MatchUpToUnitAxes(const int64_t* dim, int* axis_of) const {
  int next = 0;
  for (int axis = 0; axis < rank_; ++axis) {
    axis_of[axis] = -1;
    if (dim[axis] == 1) continue;
    while (next < buffer_.ndim && buffer_.shape[next] == 1) ++next;
    if (next == buffer_.ndim || buffer_.shape[next] != dim[axis]) return false;
    axis_of[axis] = next++;
  }
  return std::all_of(buffer_.shape + next, buffer_.shape + buffer_.ndim,
                     [](int64_t extent) { return extent == 1; });
}

void Normaliser::NeedRank() const {
  if (buffer_.ndim > kMaxBufferRank) {
    Refuse("extents", operand_, std::to_string(buffer_.ndim) + " axes", Declared());
  }
}

// A buffer whose slots are as wide as the declared dtype holds that dtype. One of another width
// is a blob, unless it spells the declared extents: then it is another dtype.
void Normaliser::NeedCompatible(bool spells_declared_extents) const {
  DLDataType wanted = operand_.dtype->dl;
  if (ReadsAs(buffer_.dtype, wanted)) return;
  if (spells_declared_extents || BitsOf(buffer_.dtype) == BitsOf(wanted)) {
    Refuse("dtype", operand_, DescribeBuffer(buffer_), Declared());
  }
}

void Normaliser::KeepOwnStrides(const int* axis_of) {
  int64_t scratch[kMaxBufferRank];
  const int64_t* own = StridesOf(buffer_, scratch);
  if (!HasZeroExtent()) {
    for (int axis = 0; axis < rank_; ++axis) {
      if (dim_[axis] != 1) stride_[axis] = own[axis_of == nullptr ? axis : axis_of[axis]];
    }
  }
  TakeReach(DeclaredReach());  // of the declared extents under the strides just taken
  slot_->own_strides = true;
}

// A buffer of the declared rank that differs only where the declaration is symbolic spells another
// value of a symbol. That is a mistake, unless the call itself gave the value and the declared
// part of the buffer lies in it as the declaration says: the first rows of more, say.
void Normaliser::NeedSymbolValues(const Table& table, const Call& call) const {
  if (buffer_.ndim != rank_ || operand_.ragged) return;
  if (BitsOf(buffer_.dtype) != BitsOf(operand_.dtype->dl)) return;
  int long_axes = 0;
  const AxisPattern* other = nullptr;  // that of the first axis that differs
  bool given = true;
  for (int axis = 0; axis < rank_; ++axis) {
    if (buffer_.shape[axis] > 1) ++long_axes;
    if (buffer_.shape[axis] == dim_[axis]) continue;
    const AxisPattern& pattern = operand_.patterns[axis];
    if (pattern.symbols.empty()) return;  // a blob: its extents are its own
    if (other == nullptr) other = &pattern;
    for (int symbol : pattern.symbols) {
      given &= call.num_overrides > 0 ||
               std::any_of(call.symbols, call.symbols + call.num_symbols,
                           [&](const SymbolValue& value) { return value.symbol == symbol; });
    }
  }
  if (long_axes < 2) return;  // flat, a blob as well
  int64_t scratch[kMaxBufferRank];
  const int64_t* own = StridesOf(buffer_, scratch);
  for (int axis = 0; axis < rank_; ++axis) {
    given &= buffer_.shape[axis] >= dim_[axis] && (dim_[axis] <= 1 || own[axis] == stride_[axis]);
  }
  if (given) return;
  std::string values;
  for (int symbol : other->symbols) {
    values += (values.empty() ? "'" : ", '") + table.symbols[symbol].name + "' is " +
              std::to_string(symbols_[symbol]);
  }
  Refuse("extents", operand_, DescribeBuffer(buffer_), Declared() + ", where symbol " + values);
}

// Of a type with several elements to a slot: whether the declaration, which is in elements, has
// slots for these symbols.
void Normaliser::NeedWholeSlots(const Table& table) const {
  int64_t count = operand_.dtype->elements_per_slot();
  int64_t dim[kMaxRank];
  int64_t stride[kMaxRank];
  Env env;
  env.symbols = symbols_;
  bool whole = true;
  for (int axis = 0; axis < rank_; ++axis) {
    dim[axis] = table.pool.Eval(operand_.element_dim[axis], env);
    stride[axis] = table.pool.Eval(operand_.element_stride[axis], env);
    bool packed = axis == operand_.packed_axis;
    if (packed ? dim[axis] % count != 0 : dim[axis] > 1 && stride[axis] % count != 0) whole = false;
  }
  if (whole) return;
  Refuse("extents", operand_,
         std::string(operand_.dtype->name) + " " + List(dim, rank_) + " with strides " +
             List(stride, rank_),
         SlotRule());
}

// A buffer of slots, not of one element to a byte: it would be taken for a blob with room to spare.
void Normaliser::NeedSlots(const Table& table) const {
  if (BitsOf(buffer_.dtype) != BitsOf(operand_.dtype->dl)) return;
  int64_t dim[kMaxRank];
  Env env;
  env.symbols = symbols_;
  for (int axis = 0; axis < rank_; ++axis) {
    dim[axis] = table.pool.Eval(operand_.element_dim[axis], env);
  }
  int axis_of[kMaxRank];
  if (!MatchUpToUnitAxes(dim, axis_of)) return;
  Refuse("extents", operand_, DescribeBuffer(buffer_) + ", one element to a byte", Declared());
}

// Describes a dense buffer as declared.
void Normaliser::TakeDeclaration() {
  int64_t bytes = CheckedMul(Elements(buffer_), BitsOf(buffer_.dtype)) / 8;
  int64_t declared = DeclaredReach().bytes();
  if (bytes < declared && !operand_.ragged) {
    // Of the declared rank it says, axis by axis, what it holds: then the extents are wrong.
    bool extents = buffer_.ndim == rank_ && !operand_.reordered;
    Refuse(extents ? "extents" : "capacity", operand_,
           DescribeBuffer(buffer_) + " of " + std::to_string(bytes) + " bytes",
           Declared() + " of " + std::to_string(declared) + " bytes");
  }
  slot_->nbytes = bytes;
  slot_->graph_described = true;
}

void Normaliser::Run(const Table& table, const Call& call) {
  slot_->data = buffer_.data;
  if (IsPacked()) NeedWholeSlots(table);
  if (buffer_.kind == Buffer::Kind::kAddress) {
    TakeReach(DeclaredReach());
    slot_->graph_described = true;
    return;
  }
  NeedRank();
  if (HasDeclaredExtents() && !operand_.reordered) {
    NeedCompatible(true);
    KeepOwnStrides(nullptr);
    return;
  }
  int axis_of[kMaxRank];
  bool matches = MatchUpToUnitAxes(dim_, axis_of);
  NeedCompatible(matches);
  if (operand_.reordered) {  // tiles lie in their own order, whatever strides the buffer has
    if (!IsDense(buffer_)) {
      Refuse("extents", operand_, DescribeBuffer(buffer_), Declared() + " in dense 128x4 tiles");
    }
    return TakeDeclaration();
  }
  if (!matches && !table.symbols.empty()) NeedSymbolValues(table, call);
  if (matches) {
    if (!IsContiguous(buffer_)) {  // a transposed view, dense or not, must not be read straight
      KeepOwnStrides(axis_of);
      return;
    }
  } else if (!IsDense(buffer_)) {
    Refuse("extents", operand_, DescribeBuffer(buffer_), Declared());
  } else if (IsPacked()) {
    NeedSlots(table);
  }
  TakeDeclaration();
}

// Whether every element of the override is one of the buffer, as far as its axes tell: each axis
// that moves is an axis of the buffer, or the start of one.
bool Normaliser::StaysWithin(const int64_t* own) const {
  if (BitsOf(buffer_.dtype) != BitsOf(operand_.dtype->dl)) return false;
  bool used[kMaxBufferRank] = {};
  for (int axis = 0; axis < rank_; ++axis) {
    if (dim_[axis] <= 1) continue;
    int best = -1;  // the shortest that will do: another axis may need a longer one
    for (int at = 0; at < buffer_.ndim; ++at) {
      bool fits = !used[at] && own[at] == stride_[axis] && buffer_.shape[at] >= dim_[axis];
      if (fits && (best < 0 || buffer_.shape[at] < buffer_.shape[best])) best = at;
    }
    if (best < 0) return false;
    used[best] = true;
  }
  return true;
}

// An override of a type with several elements to a slot: it says itself along which axis they
// share one.
void Normaliser::PackOverride(const Override& given) {
  int64_t count = operand_.dtype->elements_per_slot();
  int packed = 0;
  while (packed < rank_ && (given.stride[packed] != 1 || given.shape[packed] == 1)) ++packed;
  bool whole = packed < rank_ && given.shape[packed] % count == 0;
  for (int axis = 0; axis < rank_; ++axis) {
    if (axis != packed && given.shape[axis] != 1) whole &= given.stride[axis] % count == 0;
  }
  if (!whole) {
    Refuse("override", operand_,
           "override shape " + List(given.shape.data(), rank_) + " with strides " +
               List(given.stride.data(), rank_),
           SlotRule());
  }
  for (int axis = 0; axis < rank_; ++axis) {
    dim_[axis] = axis == packed ? given.shape[axis] / count : given.shape[axis];
    if (dim_[axis] != 1) stride_[axis] = axis == packed ? 1 : given.stride[axis] / count;
  }
}

void Normaliser::RunOverridden(const Table& table, const Override& given) {
  // The override is the description; the buffer supplies the address and must hold it.
  slot_->data = buffer_.data;
  for (int axis = 0; axis < rank_; ++axis) {
    if (given.stride[axis] < 0) {
      Refuse("override", operand_, "override strides " + List(given.stride.data(), rank_),
             "none below 0");
    }
  }
  if (std::find(given.shape.begin(), given.shape.end(), 0) != given.shape.end()) {
    if (IsPacked()) NeedWholeSlots(table);
  } else if (IsPacked()) {
    PackOverride(given);
  } else {
    for (int axis = 0; axis < rank_; ++axis) {
      if (dim_[axis] != 1) stride_[axis] = given.stride[axis];
    }
  }
  Reach needed = DeclaredReach();
  TakeReach(needed);
  if (buffer_.kind == Buffer::Kind::kAddress) return;
  NeedRank();
  int axis_of[kMaxRank];
  NeedCompatible(MatchUpToUnitAxes(dim_, axis_of));
  int64_t scratch[kMaxBufferRank];
  const int64_t* own = StridesOf(buffer_, scratch);
  int bits = BitsOf(buffer_.dtype);
  Reach held;
  if (bits % 8 == 0) {
    held = ReachOf(buffer_.shape, own, buffer_.ndim, bits / 8);
  } else if (IsDense(buffer_)) {
    held.above = CheckedMul(Elements(buffer_), bits) / 8;
  }
  auto want = [&] {
    return "room for the override " + Declared() + " with strides " + List(stride_, rank_);
  };
  if (needed.below > held.below || needed.above > held.above) {
    Refuse("capacity", operand_,
           std::to_string(held.above) + " bytes from the address of " + DescribeBuffer(buffer_),
           std::to_string(needed.above) + ", " + want());
  }
  TakeReach(held);
  if (IsDense(buffer_)) return;
  slot_->own_strides = true;
  // What lies in the gaps is not the caller's to give: reading there is harmless, writing is not.
  // Tiles would lie in the gaps.
  if (operand_.reordered || (operand_.kind == Operand::Kind::kOutput && !StaysWithin(own))) {
    Refuse("capacity", operand_, DescribeBuffer(buffer_) + ", which has gaps",
           want() + " between them");
  }
}

}  // namespace

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
  } else if (!buffer.is_integer) {
    Refuse("dtype", operand, std::to_string(buffer.number),
           std::string("an integer for ") + dtype.name);
  } else if (buffer.integer < dtype.min() || buffer.integer > dtype.max()) {
    Refuse(
        "dtype", operand, std::to_string(buffer.integer),
        std::to_string(dtype.min()) + " to " + std::to_string(dtype.max()) + " for " + dtype.name);
  } else {
    *out = {buffer.number, buffer.integer};
  }
}

namespace {

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

Reach ReachOf(const Operand& operand, const int64_t* dim, const int64_t* stride) {
  if (operand.reordered) return {0, ReorderedBytes(dim, stride, operand.rank)};
  return ReachOf(dim, stride, operand.rank, operand.dtype->bytes());
}

void ResolveDeclarations(const Table& table, Frame* frame) {
  const DeclaredLayout& declared = table.declared;
  std::copy(declared.dims.begin(), declared.dims.end(), frame->dims);
  std::copy(declared.strides.begin(), declared.strides.end(), frame->strides);
  Env env = frame->env();
  for (const DeclaredLayout::Symbolic& axis : declared.symbolic) {
    int64_t value = table.pool.Eval(axis.value, env);
    if (axis.is_extent && value < 0) {
      Refuse("extents", table.operands[axis.operand], "extent " + std::to_string(value),
             "none below 0");
    }
    (axis.is_extent ? frame->dims : frame->strides)[axis.at] = value;
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
    slot = Slot{};
    slot.present = buffer.kind != Buffer::Kind::kAbsent;
    const Override* given = call.num_overrides == 0 ? nullptr : FindOverride(call, i);
    if (given != nullptr) {
      int64_t elements[kMaxRank];
      const int64_t* declared = frame->dims + operand.base;
      if (operand.packed_axis >= 0) {
        for (int axis = 0; axis < operand.rank; ++axis) {
          elements[axis] = table.pool.Eval(operand.element_dim[axis], frame->env());
        }
        declared = elements;
      }
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
      normaliser.RunOverridden(table, *given);
    } else {
      normaliser.Run(table, call);
    }
    const int64_t* dim = frame->dims + operand.base;
    const int64_t* stride = frame->strides + operand.base;
    bool placed_by_strides = operand.kind == Operand::Kind::kOutput && !operand.reordered;
    if (placed_by_strides && MayOverlap(dim, stride, operand.rank)) {
      Refuse("overlap", operand,
             List(dim, operand.rank) + " with strides " + List(stride, operand.rank) +
                 ", whose elements overlap",
             "an output whose elements lie apart");
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
