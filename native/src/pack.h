// The variant pack: what a caller bound, compared once with the declaration.
//
// Everything below reads the frame that BindPack fills; nothing below asks what the caller's
// objects were. A frame belongs to one call, so any number of threads may run one plan.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "abi.h"
#include "layout.h"
#include "table.h"

namespace cudnn_aot {

constexpr int32_t kUnknownDevice = -1;  // a GPU buffer that does not say on which device it is

// One caller object, described by the binding layer. Shapes and strides are borrowed.
struct Buffer {
  enum class Kind : uint8_t { kAbsent, kAddress, kTensor, kNumber };

  Kind kind = Kind::kAbsent;
  bool readonly = false;
  bool is_integer = false;    // of a number: `integer` is exact
  char* data = nullptr;       // of an address or tensor
  DLDevice device{0, 0};      // of a tensor
  DLDataType dtype{0, 0, 0};  // of a tensor
  int32_t ndim = 0;
  const int64_t* shape = nullptr;
  const int64_t* strides = nullptr;  // elements; null for a contiguous tensor
  double number = 0;
  int64_t integer = 0;
};

struct SymbolValue {
  int symbol;
  int64_t value;
};

// The call's override of one operand, in elements and the graph's axis order.
struct Override {
  int operand;
  std::vector<int64_t> shape;
  std::vector<int64_t> stride;
};

struct Call {
  const Buffer* buffers = nullptr;  // one for each operand of the table
  const Buffer* workspace = nullptr;
  const SymbolValue* symbols = nullptr;
  int num_symbols = 0;
  const Override* overrides = nullptr;
  int num_overrides = 0;
};

struct Scalar {
  double number;
  int64_t integer;
};

// The scratch of one call: symbols, axes, slots, slices and kernel arguments, carved from one
// block that lives on the stack unless a table is unusually large.
class Frame {
 public:
  explicit Frame(const Table& table);
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  Env env() const { return {symbols, dims, strides, slots, attrs}; }

  int64_t* symbols;
  bool* bound;  // of each symbol
  int64_t* dims;
  int64_t* strides;
  Slot* slots;
  Scalar* scalars;
  int64_t* slice_offset;
  int64_t* slice_bytes;
  FfiAny* args;
  DLTensor* views;
  int64_t* view_axes;
  int64_t attrs[kNumAttrs] = {};
  DLDevice device{kDLCPU, 0};
  int branch = -1;
  char* workspace = nullptr;
  int64_t workspace_bytes = 0;  // that the branch needs

 private:
  static constexpr size_t kInline = 6144;
  alignas(16) char inline_[kInline];
  std::unique_ptr<char[]> heap_;
};

// The device that the call's operands name, all of them the same; false if only addresses were
// bound. Refuses a buffer that the table's device cannot read (rule "device") and a required
// operand that is missing (rule "presence").
bool FindDevice(const Table& table, const Call& call, DLDevice* device);

// Binds symbols and describes every operand in the frame; throws Refusal.
void BindPack(const Table& table, const Call& call, Frame* frame);

// The value of a scalar operand: the bound number, else the default. Refuses a number that its type
// does not hold, and nothing where there is no default.
void BindScalar(const Operand& operand, const Buffer& buffer, Scalar* out);

// Where the slots of an operand with these extents and strides, in slots, lie.
Reach ReachOf(const Operand& operand, const int64_t* dim, const int64_t* stride);

// Evaluates the declared extents and strides of every operand, in slots, for the frame's symbols.
void ResolveDeclarations(const Table& table, Frame* frame);

// "operand 3 'A'", and a refusal about it.
std::string OperandName(const Operand& operand);
[[noreturn]] void Refuse(const char* rule, const Operand& operand, const std::string& got,
                         const std::string& want);
std::string List(const int64_t* values, int count);
bool IsContiguous(const Buffer& buffer);
bool IsDense(const Buffer& buffer);
std::string DeviceName(DLDevice device);
std::string Hex(const void* address);

}  // namespace cudnn_aot
