// Expressions and predicates of a launch table: compiled to one flat pool of nodes, evaluated as
// checked int64, and bounded by interval arithmetic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "value.h"

namespace cudnn_aot {

enum class Op : uint8_t {
  // leaves
  kConst,
  kSymbol,
  kDim,
  kStride,
  kNbytes,
  kAttr,
  // arithmetic
  kAdd,
  kSub,
  kMul,
  kMin,
  kMax,
  kFloorDiv,
  kCeilDiv,
  kMod,
  kRoundUp,
  kSelect,
  // predicates
  kBool,
  kEq,
  kLt,
  kLe,
  kDivides,
  kPresent,
  kAligned,
  kAnd,
  kOr,
  kNot,
};

using Expr = int32_t;  // index of a node in its pool

struct Node {
  Op op;
  Expr a = -1;  // operands, or for a leaf: the symbol, flat axis or operand that it reads
  Expr b = -1;
  Expr c = -1;
  int64_t value = 0;  // of kConst and kBool; alignment in bytes of kAligned
};

constexpr int kAttrSmCount = 0;
constexpr int kNumAttrs = 1;

struct Slot {            // what a call bound to one operand
  char* data = nullptr;  // of element [0, ..., 0]
  int64_t nbytes = 0;    // capacity, `below` included
  int64_t below = 0;     // bytes of it that lie before `data`: the buffer runs backwards
  bool present = false;
  bool own_strides = false;      // laid out as the caller's buffer, which may have gaps
  bool graph_described = false;  // laid out as declared, whatever the caller's buffer says
};

// What the leaves read. Axes of all operands are laid out one after the other.
struct Env {
  const int64_t* symbols = nullptr;
  const int64_t* dims = nullptr;
  const int64_t* strides = nullptr;
  const Slot* slots = nullptr;
  const int64_t* attrs = nullptr;
};

struct Interval {
  int64_t low = INT64_MIN;  // the int64 limits stand for "unbounded"
  int64_t high = INT64_MAX;
};

struct Ranges {
  std::vector<Interval> symbols;
  Interval attrs[kNumAttrs];
  std::vector<int64_t> nbytes;  // upper bounds, by operand
};

enum class Truth : uint8_t { kFalse, kTrue, kUnknown };

// A conjunction whose leading parts bound one symbol by constants.
struct Bounded {
  int symbol = -1;  // -1 for none
  Interval within;
  Expr rest = -1;  // the other parts, -1 for none
};

// Names that an expression may use, and where their values are found.
struct Scope {
  struct Operand {
    int64_t uid;
    int rank;
    int base;  // flat index of axis 0
    bool optional;
    bool is_scalar;
    const std::vector<Expr>* dim;  // declared extents
  };

  const std::vector<std::string>* symbols = nullptr;
  std::vector<std::pair<std::string, Reader>> lets;  // names of expressions
  std::vector<Operand> operands;
  bool has_device = false;    // the table runs on a GPU, so device attributes exist
  bool extents_only = false;  // no stride, nbytes or device attribute: operand declarations
  bool sizes_only = false;    // no stride: workspace, whose size must be known before a call
};

class ExprPool {
 public:
  // Both throw TableError with the place of the offending item.
  Expr Compile(const Reader& source, const Scope& scope);
  Expr CompilePredicate(const Reader& source, const Scope& scope);
  Expr DivideBy(Expr a, int64_t by);  // floor_div, `by` > 0

  const Node& at(Expr expr) const { return nodes_[expr]; }
  bool IsConst(Expr expr) const { return nodes_[expr].op == Op::kConst; }
  size_t size() const { return nodes_.size(); }

  // Both throw Refusal (rule "arithmetic") on overflow and on a divisor that is not positive.
  int64_t Eval(Expr expr, const Env& env) const {
    const Node& node = nodes_[expr];
    switch (node.op) {  // the leaves, which most arguments are
      case Op::kConst:
        return node.value;
      case Op::kSymbol:
        return env.symbols[node.a];
      case Op::kDim:
        return env.dims[node.a];
      case Op::kStride:
        return env.strides[node.a];
      default:
        return EvalInner(node, env);
    }
  }
  bool Holds(Expr predicate, const Env& env) const;
  bool Holds(const Bounded& predicate, const Env& env) const {
    if (predicate.symbol >= 0) {
      int64_t value = env.symbols[predicate.symbol];
      if (value < predicate.within.low || value > predicate.within.high) return false;
    }
    return predicate.rest < 0 || Holds(predicate.rest, env);
  }
  Bounded SplitBounds(Expr predicate) const;

  // The values that `expr` can take where its symbols lie in `ranges`.
  Interval Bound(Expr expr, const Ranges& ranges) const;
  Truth Decide(Expr predicate, const Ranges& ranges) const;
  // Shrinks `ranges` to what `predicate == value` allows (never below it); false if nothing is
  // left.
  bool Narrow(Expr predicate, bool value, Ranges* ranges) const;

  // True for a product of a constant and symbols; `symbols` lists them with repetition.
  bool AsMonomial(Expr expr, int64_t* coefficient, std::vector<int>* symbols) const;
  void CollectSymbols(Expr expr, std::vector<int>* symbols) const;

 private:
  void NeedRoom(const Reader& source, int depth) const;
  Expr CompileAt(const Reader& source, const Scope& scope, int depth);
  Expr CompilePredicateAt(const Reader& source, const Scope& scope, int depth);
  Expr CompileName(const Reader& source, const Scope& scope, int depth);
  Expr CompileLeaf(const Reader& source, const Scope& scope, const std::string& head);
  Expr Add(Node node);
  int64_t EvalInner(const Node& node, const Env& env) const;
  bool NarrowExpr(Expr expr, Interval to, Ranges* ranges) const;
  bool NarrowOrder(Expr a, Expr b, int64_t gap, Ranges* ranges) const;

  std::vector<Node> nodes_;
};

}  // namespace cudnn_aot
