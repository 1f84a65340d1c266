#include "expression.h"

#include <algorithm>

#include "arithmetic.h"

namespace cudnn_aot {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxNodes = 1 << 16;  // of a table, whose names are replaced where they are used
constexpr size_t kMaxOperands = 64;    // of an n-ary form, which is a chain: bounds the recursion

struct Form {
  const char* name;
  Op op;
  int arity;  // 0 for n-ary
};

const Form kArithmetic[] = {
    {"add", Op::kAdd, 0},          {"sub", Op::kSub, 2}, {"mul", Op::kMul, 0},
    {"min", Op::kMin, 0},          {"max", Op::kMax, 0}, {"floor_div", Op::kFloorDiv, 2},
    {"ceil_div", Op::kCeilDiv, 2}, {"mod", Op::kMod, 2}, {"round_up", Op::kRoundUp, 2},
};
const char* const kOtherExpressions[] = {"dim", "stride", "nbytes", "attr", "select"};

const Form kComparisons[] = {
    {"eq", Op::kEq, 2}, {"lt", Op::kLt, 2}, {"le", Op::kLe, 2}, {"divides", Op::kDivides, 2}};
const Form kConnectives[] = {{"and", Op::kAnd, 0}, {"or", Op::kOr, 0}, {"not", Op::kNot, 1}};
const char* const kOtherPredicates[] = {"present", "aligned"};

template <size_t N>
const Form* Find(const Form (&forms)[N], const std::string& name) {
  for (const Form& form : forms) {
    if (name == form.name) return &form;
  }
  return nullptr;
}

std::string ExpressionNames() {
  std::vector<std::string> names;
  for (const Form& form : kArithmetic) names.emplace_back(form.name);
  names.insert(names.end(), std::begin(kOtherExpressions), std::end(kOtherExpressions));
  return Choices(names);
}

std::string PredicateNames() {
  std::vector<std::string> names;
  for (const Form& form : kComparisons) names.emplace_back(form.name);
  for (const Form& form : kConnectives) names.emplace_back(form.name);
  names.insert(names.end(), std::begin(kOtherPredicates), std::end(kOtherPredicates));
  return Choices(names);
}

// The operands of `["name", ...]` after their count was checked.
std::vector<Reader> Arguments(const Reader& source, const std::string& name, size_t arity) {
  std::vector<Reader> items = source.Items();
  size_t got = items.size() - 1;
  if (arity == 0 ? (got < 1 || got > kMaxOperands) : got != arity) {
    std::string want = arity == 0 ? "1 to " + std::to_string(kMaxOperands) : std::to_string(arity);
    source.Fail("'" + name + "' got " + std::to_string(got) + " operands, want " + want);
  }
  items.erase(items.begin());
  return items;
}

std::string Head(const Reader& source, const char* what) {
  std::vector<Reader> items = source.Items();
  if (items.empty()) source.Fail(std::string("got an empty list, want ") + what);
  return items[0].String();
}

int FindOperand(const Reader& source, const Scope& scope) {
  int64_t uid = source.Int();
  for (size_t i = 0; i < scope.operands.size(); ++i) {
    if (scope.operands[i].uid != uid) continue;
    if (scope.operands[i].is_scalar) {
      source.Fail("operand " + std::to_string(uid) + " is a scalar, want a tensor operand");
    }
    return static_cast<int>(i);
  }
  source.Fail("no operand has uid " + std::to_string(uid));
}

// Nodes whose fields name no other node.
bool IsLeaf(Op op) {
  return op <= Op::kAttr || op == Op::kBool || op == Op::kPresent || op == Op::kAligned;
}

}  // namespace

Expr ExprPool::Add(Node node) {
  // Fold what only constants feed, unless it would be refused: that belongs to the call.
  auto is_constant = [&](Expr e) {
    return e < 0 || nodes_[e].op == Op::kConst || nodes_[e].op == Op::kBool;
  };
  bool foldable =
      !IsLeaf(node.op) && is_constant(node.a) && is_constant(node.b) && is_constant(node.c);
  nodes_.push_back(node);
  Expr index = static_cast<Expr>(nodes_.size()) - 1;
  if (foldable) {
    try {
      bool predicate = node.op > Op::kSelect;
      Node folded{predicate ? Op::kBool : Op::kConst};
      folded.value = predicate ? static_cast<int64_t>(Holds(index, Env{})) : Eval(index, Env{});
      nodes_[index] = folded;
    } catch (const Refusal&) {
    }
  }
  return index;
}

Expr ExprPool::Compile(const Reader& source, const Scope& scope) {
  return CompileAt(source, scope, 0);
}

Expr ExprPool::CompilePredicate(const Reader& source, const Scope& scope) {
  return CompilePredicateAt(source, scope, 0);
}

Expr ExprPool::DivideBy(Expr a, int64_t by) {
  Expr b = Add({Op::kConst, -1, -1, -1, by});
  return Add({Op::kFloorDiv, a, b});
}

void ExprPool::NeedRoom(const Reader& source, int depth) const {
  if (depth > kMaxDepth) source.Fail("nested deeper than " + std::to_string(kMaxDepth));
  if (nodes_.size() >= kMaxNodes) {
    source.Fail("the table's expressions, names replaced, have more than " +
                std::to_string(kMaxNodes) + " parts");
  }
}

Expr ExprPool::CompileAt(const Reader& source, const Scope& scope, int depth) {
  NeedRoom(source, depth);
  const Value& value = source.value();
  if (value.kind == Value::Kind::kInt) return Add({Op::kConst, -1, -1, -1, value.integer});
  if (value.kind == Value::Kind::kString) return CompileName(source, scope, depth);
  if (value.kind != Value::Kind::kList) {
    source.Fail(std::string("got ") + value.KindName() +
                ", want an expression: an integer, a symbol or a list");
  }
  std::string head = Head(source, "an expression");
  if (const Form* form = Find(kArithmetic, head)) {
    std::vector<Reader> items = Arguments(source, head, form->arity);
    Expr out = CompileAt(items[0], scope, depth + 1);
    for (size_t i = 1; i < items.size(); ++i) {  // n-ary forms are evaluated left to right
      Expr next = CompileAt(items[i], scope, depth + 1);
      out = Add({form->op, out, next});
    }
    return out;
  }
  if (head == "select") {
    std::vector<Reader> items = Arguments(source, head, 3);
    Expr predicate = CompilePredicateAt(items[0], scope, depth + 1);
    Expr then = CompileAt(items[1], scope, depth + 1);
    Expr otherwise = CompileAt(items[2], scope, depth + 1);
    if (nodes_[predicate].op == Op::kBool) return nodes_[predicate].value ? then : otherwise;
    return Add({Op::kSelect, predicate, then, otherwise});
  }
  return CompileLeaf(source, scope, head);
}

Expr ExprPool::CompileName(const Reader& source, const Scope& scope, int depth) {
  const std::string& name = source.String();
  const auto& symbols = *scope.symbols;
  auto symbol = std::find(symbols.begin(), symbols.end(), name);
  if (symbol != symbols.end()) {
    return Add({Op::kSymbol, static_cast<Expr>(symbol - symbols.begin())});
  }
  for (const auto& [let, expression] : scope.lets) {
    if (let != name) continue;
    // Replaced where it is used: the use decides what it may read, and whether it is evaluated.
    return CompileAt(expression, scope, depth + 1);
  }
  source.Fail("no symbol or 'let' is named '" + name + "'");
}

Expr ExprPool::CompileLeaf(const Reader& source, const Scope& scope, const std::string& head) {
  if (head == "dim" || head == "stride") {
    std::vector<Reader> items = Arguments(source, head, 2);
    if (scope.extents_only) source.Fail("a declaration may use integers and symbols only");
    const Scope::Operand& operand = scope.operands[FindOperand(items[0], scope)];
    int64_t axis = items[1].Int();
    if (axis < 0 || axis >= operand.rank) {
      items[1].Fail("got axis " + std::to_string(axis) + ", want 0 to " +
                    std::to_string(operand.rank - 1) + " for operand " +
                    std::to_string(operand.uid));
    }
    Expr flat = operand.base + static_cast<Expr>(axis);
    if (head == "dim") {
      // Normalisation leaves the declared extents, so an extent is an expression of symbols.
      Expr declared = (*operand.dim)[axis];
      Op op = nodes_[declared].op;
      if (op == Op::kConst || op == Op::kSymbol) return declared;
      return Add({Op::kDim, flat, declared});
    }
    if (scope.sizes_only) source.Fail("a workspace size may not depend on a stride");
    return Add({Op::kStride, flat});
  }
  if (head == "nbytes") {
    std::vector<Reader> items = Arguments(source, head, 1);
    if (scope.extents_only) source.Fail("a declaration may use integers and symbols only");
    return Add({Op::kNbytes, FindOperand(items[0], scope)});
  }
  if (head == "attr") {
    std::vector<Reader> items = Arguments(source, head, 1);
    if (scope.extents_only) source.Fail("a declaration may use integers and symbols only");
    if (items[0].String() != "sm_count") {
      items[0].Fail("unknown attribute '" + items[0].String() + "', want 'sm_count'");
    }
    if (!scope.has_device) source.Fail("a table of device 'cpu' has no device attributes");
    return Add({Op::kAttr, kAttrSmCount});
  }
  source.Fail("unknown expression '" + head + "', want " + ExpressionNames());
}

Expr ExprPool::CompilePredicateAt(const Reader& source, const Scope& scope, int depth) {
  NeedRoom(source, depth);
  const Value& value = source.value();
  if (value.kind == Value::Kind::kBool) return Add({Op::kBool, -1, -1, -1, value.boolean});
  if (value.kind != Value::Kind::kList) {
    source.Fail(std::string("got ") + value.KindName() +
                ", want a predicate: true, false or a list");
  }
  std::string head = Head(source, "a predicate");
  if (const Form* form = Find(kComparisons, head)) {
    std::vector<Reader> items = Arguments(source, head, form->arity);
    Expr a = CompileAt(items[0], scope, depth + 1);
    Expr b = CompileAt(items[1], scope, depth + 1);
    return Add({form->op, a, b});
  }
  if (const Form* form = Find(kConnectives, head)) {
    std::vector<Reader> items = Arguments(source, head, form->arity);
    std::vector<Expr> parts;
    for (const Reader& item : items) parts.push_back(CompilePredicateAt(item, scope, depth + 1));
    Expr out = parts.back();
    parts.pop_back();
    if (form->op == Op::kNot) return Add({Op::kNot, out});
    // A chain to the right: the first part is at the top, and often decides.
    for (; !parts.empty(); parts.pop_back()) out = Add({form->op, parts.back(), out});
    return out;
  }
  if (scope.extents_only && (head == "present" || head == "aligned")) {
    source.Fail("a declaration may use integers and symbols only");
  }
  if (head == "present") {
    std::vector<Reader> items = Arguments(source, head, 1);
    int operand = FindOperand(items[0], scope);
    if (!scope.operands[operand].optional) return Add({Op::kBool, -1, -1, -1, 1});
    return Add({Op::kPresent, operand});
  }
  if (head == "aligned") {
    std::vector<Reader> items = Arguments(source, head, 2);
    int operand = FindOperand(items[0], scope);
    int64_t bytes = items[1].IntIn(1, int64_t{1} << 32);
    if (bytes == 1) return Add({Op::kBool, -1, -1, -1, 1});
    return Add({Op::kAligned, operand, -1, -1, bytes});
  }
  source.Fail("unknown predicate '" + head + "', want true, false, " + PredicateNames());
}

int64_t ExprPool::EvalInner(const Node& node, const Env& env) const {
  switch (node.op) {
    case Op::kNbytes:
      return env.slots[node.a].nbytes;
    case Op::kAttr:
      return env.attrs[node.a];
    case Op::kSelect:
      return Holds(node.a, env) ? Eval(node.b, env) : Eval(node.c, env);
    default:
      break;
  }
  int64_t a = Eval(node.a, env);
  int64_t b = Eval(node.b, env);
  switch (node.op) {
    case Op::kAdd:
      return CheckedAdd(a, b);
    case Op::kSub:
      return CheckedSub(a, b);
    case Op::kMul:
      return CheckedMul(a, b);
    case Op::kMin:
      return std::min(a, b);
    case Op::kMax:
      return std::max(a, b);
    default:
      break;
  }
  if (b <= 0) RefuseDivisor(b);
  switch (node.op) {
    case Op::kFloorDiv:
      return FloorDivPositive(a, b);
    case Op::kCeilDiv:
      return CeilDivPositive(a, b);
    case Op::kMod:
      return ModPositive(a, b);
    default:  // kRoundUp
      return CheckedMul(CeilDivPositive(a, b), b);
  }
}

bool ExprPool::Holds(Expr predicate, const Env& env) const {
  const Node& node = nodes_[predicate];
  switch (node.op) {
    case Op::kBool:
      return node.value != 0;
    case Op::kAnd:
      return Holds(node.a, env) && Holds(node.b, env);
    case Op::kOr:
      return Holds(node.a, env) || Holds(node.b, env);
    case Op::kNot:
      return !Holds(node.a, env);
    case Op::kPresent:
      return env.slots[node.a].present;
    case Op::kAligned:
      return reinterpret_cast<uintptr_t>(env.slots[node.a].data) %
                 static_cast<uintptr_t>(node.value) ==
             0;
    default:
      break;
  }
  int64_t a = Eval(node.a, env);
  int64_t b = Eval(node.b, env);
  switch (node.op) {
    case Op::kEq:
      return a == b;
    case Op::kLt:
      return a < b;
    case Op::kLe:
      return a <= b;
    default:  // kDivides
      if (a <= 0) RefuseDivisor(a);
      return b % a == 0;
  }
}

Bounded ExprPool::SplitBounds(Expr predicate) const {
  Bounded split;
  split.rest = predicate;
  while (split.rest >= 0) {
    const Node& node = nodes_[split.rest];
    const Node& part = node.op == Op::kAnd ? nodes_[node.a] : node;
    if (part.op != Op::kLe) break;
    const Node& a = nodes_[part.a];
    const Node& b = nodes_[part.b];
    bool above = a.op == Op::kConst && b.op == Op::kSymbol;
    if (!above && !(a.op == Op::kSymbol && b.op == Op::kConst)) break;
    int symbol = above ? b.a : a.a;
    if (split.symbol >= 0 && symbol != split.symbol) break;
    split.symbol = symbol;
    if (above) {
      split.within.low = std::max(split.within.low, a.value);
    } else {
      split.within.high = std::min(split.within.high, b.value);
    }
    split.rest = node.op == Op::kAnd ? node.b : -1;
  }
  return split;
}

bool ExprPool::AsMonomial(Expr expr, int64_t* coefficient, std::vector<int>* symbols) const {
  const Node& node = nodes_[expr];
  switch (node.op) {
    case Op::kConst:
      return !__builtin_mul_overflow(*coefficient, node.value, coefficient);
    case Op::kSymbol:
      symbols->push_back(node.a);
      return true;
    case Op::kMul:
      return AsMonomial(node.a, coefficient, symbols) && AsMonomial(node.b, coefficient, symbols);
    default:
      return false;
  }
}

void ExprPool::CollectSymbols(Expr expr, std::vector<int>* symbols) const {
  const Node& node = nodes_[expr];
  if (node.op == Op::kSymbol) symbols->push_back(node.a);
  if (IsLeaf(node.op)) return;
  for (Expr child : {node.a, node.b, node.c}) {
    if (child >= 0) CollectSymbols(child, symbols);
  }
}

}  // namespace cudnn_aot
