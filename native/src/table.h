// The parsed launch table: everything that a call does not decide.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtype.h"
#include "expression.h"

namespace cudnn_aot {

constexpr int kMaxRank = 16;     // of an operand and of a view
constexpr int kMaxSymbols = 16;  // of a table

struct Symbol {
  std::string name;
  int64_t min = 0;
  int64_t max = 0;
  int64_t multiple_of = 1;
  int64_t hint = 0;
};

// How an axis of a buffer can bind a symbol: extent == coefficient * product of symbols.
struct AxisPattern {
  bool monomial = false;
  int64_t coefficient = 1;
  std::vector<int> symbols;  // with repetition for a monomial, else all that the extent reads
  int64_t per_slot = 1;      // elements along this axis in a slot of a buffer
};

struct Operand {
  enum class Kind : uint8_t { kInput, kOutput, kScalar };

  int64_t uid = 0;
  std::string name;
  Kind kind = Kind::kInput;
  const DType* dtype = nullptr;
  bool optional = false;
  bool ragged = false;     // may be smaller than declared; the checks decide
  bool reordered = false;  // whole 128x4 tiles of scales: strides say nothing of where they lie
  int rank = 0;
  int base = 0;                // flat index of axis 0 in a frame
  uintptr_t address_mask = 0;  // the bits of an address that checks and guards read
  std::vector<Expr> dim;       // in slots, as the frame has it
  std::vector<Expr> stride;    // in slots
  // Of a type with several elements to a slot: the axis along which they share it (-1 for the
  // others), and the declaration, which is in elements.
  int packed_axis = -1;
  std::vector<Expr> element_dim;
  std::vector<Expr> element_stride;
  std::vector<AxisPattern> patterns;  // per axis, in elements
  // A scalar's default; `integer` mirrors `number` for integer types.
  bool has_default = false;
  double number = 0;
  int64_t integer = 0;
};

// The declared extents and strides of all operands in slots, one after the other as in a frame.
// Constants are evaluated once per table; a call evaluates what its symbols say.
struct DeclaredLayout {
  struct Symbolic {
    int operand;
    int at;  // flat index
    Expr value;
    bool is_extent;
  };

  std::vector<int64_t> dims;
  std::vector<int64_t> strides;
  std::vector<Symbolic> symbolic;
};

struct Check {
  enum class Rule : uint8_t { kAlignment, kUnitStride, kDivisible, kRange, kEqual };

  Rule rule = Rule::kRange;
  int operand = -1;  // index, -1 for none
  int64_t bytes = 1;
  int axis = 0;
  Expr a = -1;  // expr, or a
  Expr b = -1;  // by, or b
  Expr min = -1;
  Expr max = -1;
};

struct Slice {
  std::string name;
  Expr bytes = -1;
  int64_t align = 1;
};

struct Arg {
  enum class Kind : uint8_t { kTensor, kInt, kFloat, kScalar, kNone, kLaunch };

  Kind kind = Kind::kNone;
  int operand = -1;  // of a tensor or scalar
  int slice = -1;    // of a tensor, when it is no operand
  const DType* dtype = nullptr;
  std::vector<Expr> dim;
  std::vector<Expr> stride;
  Expr value = -1;  // of an int; offset of a tensor (-1 for 0)
  double number = 0;
};

struct Step {
  enum class Kind : uint8_t { kKernel, kFill, kBackend };

  Kind kind = Kind::kKernel;
  int kernel = 0;
  std::vector<Arg> args;
  bool has_launch = false;
  int operand = -1;  // of a fill
  int slice = -1;    // of a fill that has no operand, and the workspace of a backend step
  int blob = 0;
  std::vector<int> operands;  // of a backend step, in the order of its uids
  Expr bytes = -1;
  uint32_t pattern = 0;
  int width = 1;
};

struct Branch {
  std::string name;
  std::vector<Slice> slices;
  std::vector<Step> steps;
  int64_t align = 1;  // the largest of its slices
};

struct Guard {
  Expr when;
  int branch;
  Bounded split;  // `when`, as calls ask it: most guards of a table of ranges end at a symbol
};

struct Table {
  bool cuda = false;
  std::vector<Symbol> symbols;
  std::vector<std::string> symbol_names;
  std::vector<Operand> operands;  // ascending uid
  DeclaredLayout declared;
  std::vector<Check> checks;
  std::vector<Guard> dispatch;
  std::vector<Branch> branches;
  ExprPool pool;
  std::vector<int> tensors;  // indices of the operands that are no scalars
  std::vector<int> scalars;
  bool can_settle = true;  // every alignment that the table asks about is a power of two
  int total_rank = 0;      // of all operands
  int num_kernels = 0;     // one more than the highest index that a step names
  int num_blobs = 0;
  // Sizes of a call's scratch, the largest over the branches and their steps.
  int max_slices = 0;
  int max_args = 0;
  int max_views = 0;
  int max_view_axes = 0;

  int FindOperand(int64_t uid) const;  // -1 when absent
  int FindSymbol(const std::string& name) const;
};

// Throws TableError with the place of the first offence.
Table ParseTable(const Value& value);

// Throws TableError unless there are as many kernels and blobs as steps name.
void NeedParts(const Table& table, size_t kernels, size_t blobs);

}  // namespace cudnn_aot
