// Bounds of expressions where symbols lie in ranges. Bounds saturate: an int64 limit means
// "unbounded", and a value that a call would be refused for is not counted.
#include <algorithm>

#include "arithmetic.h"
#include "expression.h"

namespace cudnn_aot {
namespace {

using Wide = __int128;

int64_t Clamp(Wide value) {
  return static_cast<int64_t>(std::clamp<Wide>(value, INT64_MIN, INT64_MAX));
}

Wide Low(Interval x) { return x.low; }
Wide High(Interval x) { return x.high; }

Interval Hull(Interval a, Interval b) { return {std::min(a.low, b.low), std::max(a.high, b.high)}; }

template <typename F>
Interval Corners(Interval a, Interval b, F f) {
  Wide v[] = {f(Low(a), Low(b)), f(Low(a), High(b)), f(High(a), Low(b)), f(High(a), High(b))};
  return {Clamp(*std::min_element(v, v + 4)), Clamp(*std::max_element(v, v + 4))};
}

Wide FloorDiv(Wide a, Wide b) { return a / b - (a % b < 0 ? 1 : 0); }
Wide CeilDiv(Wide a, Wide b) { return a / b + (a % b > 0 ? 1 : 0); }

// Keeps "unbounded" unbounded through a shift or a scaling.
int64_t Keep(int64_t bound, Wide moved) {
  return bound == INT64_MIN || bound == INT64_MAX ? bound : Clamp(moved);
}

}  // namespace

Interval ExprPool::Bound(Expr expr, const Ranges& ranges) const {
  const Node& node = at(expr);
  switch (node.op) {
    case Op::kConst:
      return {node.value, node.value};
    case Op::kSymbol:
      return ranges.symbols[node.a];
    case Op::kDim:
      return Bound(node.b, ranges);
    case Op::kAttr:
      return ranges.attrs[node.a];
    case Op::kNbytes:
      return {0, ranges.nbytes[node.a]};
    case Op::kStride:
      return {};
    case Op::kSelect:
      switch (Decide(node.a, ranges)) {
        case Truth::kTrue:
          return Bound(node.b, ranges);
        case Truth::kFalse:
          return Bound(node.c, ranges);
        default:
          return Hull(Bound(node.b, ranges), Bound(node.c, ranges));
      }
    default:
      break;
  }
  Interval a = Bound(node.a, ranges);
  Interval b = Bound(node.b, ranges);
  switch (node.op) {
    case Op::kAdd:
      return {Clamp(Low(a) + b.low), Clamp(High(a) + b.high)};
    case Op::kSub:
      return {Clamp(Low(a) - b.high), Clamp(High(a) - b.low)};
    case Op::kMul:
      return Corners(a, b, [](Wide x, Wide y) { return x * y; });
    case Op::kMin:
      return {std::min(a.low, b.low), std::min(a.high, b.high)};
    case Op::kMax:
      return {std::max(a.low, b.low), std::max(a.high, b.high)};
    default:
      break;
  }
  b.low = std::max<int64_t>(b.low, 1);
  if (b.high < 1) return {0, 0};  // every such call is refused
  switch (node.op) {
    case Op::kFloorDiv:
      return Corners(a, b, FloorDiv);
    case Op::kCeilDiv:
      return Corners(a, b, CeilDiv);
    case Op::kMod:
      if (a.low >= 0 && a.high < b.low) return a;
      return {0, a.low >= 0 ? std::min(a.high, b.high - 1) : b.high - 1};
    default:  // kRoundUp
      if (b.low == b.high) {
        return {Clamp(CeilDiv(a.low, b.low) * b.low), Clamp(CeilDiv(a.high, b.low) * b.low)};
      }
      return {a.low, Clamp(High(a) + b.high - 1)};
  }
}

Truth ExprPool::Decide(Expr predicate, const Ranges& ranges) const {
  const Node& node = at(predicate);
  auto truth = [](bool yes, bool no) {
    return yes ? Truth::kTrue : no ? Truth::kFalse : Truth::kUnknown;
  };
  switch (node.op) {
    case Op::kBool:
      return truth(node.value != 0, node.value == 0);
    case Op::kAnd: {
      Truth a = Decide(node.a, ranges);
      if (a == Truth::kFalse) return a;
      Truth b = Decide(node.b, ranges);
      return truth(a == Truth::kTrue && b == Truth::kTrue, b == Truth::kFalse);
    }
    case Op::kOr: {
      Truth a = Decide(node.a, ranges);
      if (a == Truth::kTrue) return a;
      Truth b = Decide(node.b, ranges);
      return truth(b == Truth::kTrue, a == Truth::kFalse && b == Truth::kFalse);
    }
    case Op::kNot: {
      Truth a = Decide(node.a, ranges);
      return truth(a == Truth::kFalse, a == Truth::kTrue);
    }
    case Op::kPresent:
    case Op::kAligned:
      return Truth::kUnknown;
    default:
      break;
  }
  Interval a = Bound(node.a, ranges);
  Interval b = Bound(node.b, ranges);
  bool points = a.low == a.high && b.low == b.high;
  switch (node.op) {
    case Op::kEq:
      return truth(points && a.low == b.low, a.high < b.low || b.high < a.low);
    case Op::kLt:
      return truth(a.high < b.low, a.low >= b.high);
    case Op::kLe:
      return truth(a.high <= b.low, a.low > b.high);
    default:  // kDivides
      if (a.low == 1 && a.high == 1) return Truth::kTrue;
      if (!points || a.low <= 0) return Truth::kUnknown;
      return truth(b.low % a.low == 0, b.low % a.low != 0);
  }
}

bool ExprPool::NarrowExpr(Expr expr, Interval to, Ranges* ranges) const {
  const Node& node = at(expr);
  Interval now = Bound(expr, *ranges);
  to = {std::max(to.low, now.low), std::min(to.high, now.high)};
  if (to.low > to.high) return false;
  if (node.op == Op::kSymbol) {
    ranges->symbols[node.a] = to;
    return true;
  }
  if (node.op == Op::kDim) return NarrowExpr(node.b, to, ranges);
  if (node.op < Op::kAdd || node.op == Op::kSelect) return true;
  Interval a = Bound(node.a, *ranges);
  Interval b = Bound(node.b, *ranges);
  bool by_point = b.low == b.high && b.low > 0;
  Wide d = b.low;
  switch (node.op) {
    case Op::kAdd:
      return NarrowExpr(node.a, {Clamp(Low(to) - b.high), Clamp(High(to) - b.low)}, ranges) &&
             NarrowExpr(node.b, {Clamp(Low(to) - a.high), Clamp(High(to) - a.low)}, ranges);
    case Op::kMin:
      return NarrowExpr(node.a, {to.low, INT64_MAX}, ranges) &&
             NarrowExpr(node.b, {to.low, INT64_MAX}, ranges);
    case Op::kMax:
      return NarrowExpr(node.a, {INT64_MIN, to.high}, ranges) &&
             NarrowExpr(node.b, {INT64_MIN, to.high}, ranges);
    case Op::kMul:
      if (a.low == a.high && a.low > 0) {
        Wide factor = a.low;
        return NarrowExpr(
            node.b,
            {Keep(to.low, CeilDiv(to.low, factor)), Keep(to.high, FloorDiv(to.high, factor))},
            ranges);
      }
      if (!by_point) return true;
      return NarrowExpr(
          node.a, {Keep(to.low, CeilDiv(to.low, d)), Keep(to.high, FloorDiv(to.high, d))}, ranges);
    case Op::kCeilDiv:
      if (!by_point) return true;
      return NarrowExpr(node.a, {Keep(to.low, (Low(to) - 1) * d + 1), Keep(to.high, High(to) * d)},
                        ranges);
    case Op::kFloorDiv:
      if (!by_point) return true;
      return NarrowExpr(node.a, {Keep(to.low, Low(to) * d), Keep(to.high, High(to) * d + d - 1)},
                        ranges);
    case Op::kRoundUp:
      if (!by_point) return true;
      return NarrowExpr(
          node.a,
          {Keep(to.low, (CeilDiv(to.low, d) - 1) * d + 1), Keep(to.high, FloorDiv(to.high, d) * d)},
          ranges);
    default:
      return true;
  }
}

// Applies a + gap <= b.
bool ExprPool::NarrowOrder(Expr a, Expr b, int64_t gap, Ranges* ranges) const {
  int64_t high = Bound(b, *ranges).high;
  if (!NarrowExpr(a, {INT64_MIN, Keep(high, High({0, high}) - gap)}, ranges)) return false;
  int64_t low = Bound(a, *ranges).low;
  return NarrowExpr(b, {Keep(low, Low({low, 0}) + gap), INT64_MAX}, ranges);
}

bool ExprPool::Narrow(Expr predicate, bool value, Ranges* ranges) const {
  const Node& node = at(predicate);
  switch (node.op) {
    case Op::kBool:
      return (node.value != 0) == value;
    case Op::kNot:
      return Narrow(node.a, !value, ranges);
    case Op::kAnd:
      if (value) return Narrow(node.a, true, ranges) && Narrow(node.b, true, ranges);
      break;
    case Op::kOr:
      if (!value) return Narrow(node.a, false, ranges) && Narrow(node.b, false, ranges);
      break;
    case Op::kLt:
      return value ? NarrowOrder(node.a, node.b, 1, ranges)
                   : NarrowOrder(node.b, node.a, 0, ranges);
    case Op::kLe:
      return value ? NarrowOrder(node.a, node.b, 0, ranges)
                   : NarrowOrder(node.b, node.a, 1, ranges);
    case Op::kEq:
      if (value) {
        return NarrowOrder(node.a, node.b, 0, ranges) && NarrowOrder(node.b, node.a, 0, ranges);
      }
      break;
    default:
      break;
  }
  return Decide(predicate, *ranges) != (value ? Truth::kFalse : Truth::kTrue);
}

}  // namespace cudnn_aot
