#include "table.h"

#include <algorithm>

#include "error.h"

namespace cudnn_aot {
namespace {

constexpr int64_t kTableVersion = 1;
constexpr int64_t kMaxAlign = int64_t{1} << 20;

template <typename T, size_t N>
struct Choice {
  struct Row {
    const char* name;
    T value;
  };
  Row rows[N];

  T Read(const Reader& source) const {
    for (const Row& row : rows) {
      if (source.String() == row.name) return row.value;
    }
    std::vector<std::string> names;
    for (const Row& row : rows) names.emplace_back(row.name);
    source.Fail("got '" + source.String() + "', want " + Choices(names));
  }
};

const Choice<bool, 2> kDevices{{{"cuda", true}, {"cpu", false}}};
const Choice<Operand::Kind, 3> kOperandKinds{{{"input", Operand::Kind::kInput},
                                              {"output", Operand::Kind::kOutput},
                                              {"scalar", Operand::Kind::kScalar}}};
const Choice<bool, 2> kReorderings{{{"NONE", false}, {"F8_128x4", true}}};
const Choice<Check::Rule, 5> kRules{{{"alignment", Check::Rule::kAlignment},
                                     {"unit_stride", Check::Rule::kUnitStride},
                                     {"divisible", Check::Rule::kDivisible},
                                     {"range", Check::Rule::kRange},
                                     {"equal", Check::Rule::kEqual}}};
const Choice<Arg::Kind, 6> kArgs{{{"tensor", Arg::Kind::kTensor},
                                  {"int", Arg::Kind::kInt},
                                  {"float", Arg::Kind::kFloat},
                                  {"scalar", Arg::Kind::kScalar},
                                  {"none", Arg::Kind::kNone},
                                  {"launch", Arg::Kind::kLaunch}}};

const DType* ReadDType(const Reader& source) {
  const DType* dtype = FindDType(source.String());
  if (dtype == nullptr) {
    source.Fail("unknown dtype '" + source.String() + "', want " + DTypeNames());
  }
  return dtype;
}

int64_t ReadPowerOfTwo(const Reader& source) {
  int64_t value = source.IntIn(1, kMaxAlign);
  if ((value & (value - 1)) != 0) {
    source.Fail("got " + std::to_string(value) + ", want a power of two");
  }
  return value;
}

class Parser {
 public:
  Table Parse(const Reader& root);

 private:
  void ParseSymbols(const Reader& source);
  void ParseOperand(const Reader& source);
  void ParseTensor(const Reader& source, Operand* operand);
  void PackDeclaration(const Reader& source, Operand* operand);
  void LayOut(const Operand& operand);
  void ParseScalarDefault(const Reader& source, Operand* operand);
  void ParseCheck(const Reader& source);
  void ParseBranch(const std::string& name, const Reader& source);
  void ParseSlice(const Reader& source, Branch* branch);
  void ParseStep(const Reader& source, Branch* branch);
  void ParseKernelStep(const Reader& source, const Branch& branch, Step* step);
  void ParseFillStep(const Reader& source, const Branch& branch, Step* step);
  void ParseBackendStep(const Reader& source, const Branch& branch, Step* step);
  Arg ParseArg(const Reader& source, const Branch& branch);
  void ParseTensorArg(const Reader& source, const Branch& branch, Arg* arg);
  void ParseDispatch(const Reader& source);
  void FindAddressMasks();

  std::vector<Expr> ReadExprs(const Reader& source, const Scope& scope);
  AxisPattern PatternOf(Expr extent) const;
  int OperandAt(const Reader& source, bool scalar) const;
  int SliceAt(const Reader& source, const Branch& branch) const;
  void ReadTarget(const Reader& source, const Branch& branch, int* operand, int* slice) const;

  Table table_;
  Scope declaration_;  // symbols
  Scope size_;         // and extents, device attributes
  Scope full_;         // and strides, capacities
};

Table Parser::Parse(const Reader& root) {
  root.Fields({"version", "device", "symbols", "operands", "checks", "dispatch", "branches"},
              {"let"});
  int64_t version = root.Field("version").Int();
  if (version != kTableVersion) {
    root.Field("version").Fail("got " + std::to_string(version) + ", want " +
                               std::to_string(kTableVersion));
  }
  table_.cuda = kDevices.Read(root.Field("device"));
  ParseSymbols(root.Field("symbols"));
  declaration_.symbols = &table_.symbol_names;
  if (root.Has("let")) {
    declaration_.lets = root.Field("let").Members();
    for (const auto& [name, expression] : declaration_.lets) {
      if (table_.FindSymbol(name) >= 0) expression.Fail("a symbol has this name");
    }
  }
  declaration_.has_device = table_.cuda;
  declaration_.extents_only = true;

  std::vector<Reader> operands = root.Field("operands").Items();
  table_.operands.reserve(operands.size());
  for (const Reader& operand : operands) ParseOperand(operand);

  full_ = declaration_;
  full_.extents_only = false;
  for (const Operand& operand : table_.operands) {
    full_.operands.push_back({operand.uid, operand.rank, operand.base, operand.optional,
                              operand.kind == Operand::Kind::kScalar, &operand.dim});
  }
  for (const auto& [name, expression] : full_.lets) table_.pool.Compile(expression, full_);
  size_ = full_;
  size_.sizes_only = true;

  for (const Reader& check : root.Field("checks").Items()) ParseCheck(check);
  for (const auto& [name, branch] : root.Field("branches").Members()) ParseBranch(name, branch);
  ParseDispatch(root.Field("dispatch"));
  FindAddressMasks();
  return std::move(table_);
}

void Parser::ParseSymbols(const Reader& source) {
  if (source.Members().size() > kMaxSymbols) {
    source.Fail("got " + std::to_string(source.Members().size()) + " symbols, want at most " +
                std::to_string(kMaxSymbols));
  }
  for (const auto& [name, entry] : source.Members()) {
    entry.Fields({"min", "max"}, {"multiple_of", "hint"});
    Symbol symbol;
    symbol.name = name;
    symbol.min = entry.Field("min").IntIn(0, INT64_MAX);
    symbol.max = entry.Field("max").IntIn(symbol.min, INT64_MAX);
    if (entry.Has("multiple_of")) {
      symbol.multiple_of = entry.Field("multiple_of").IntIn(1, INT64_MAX);
    }
    symbol.hint = entry.Has("hint") ? entry.Field("hint").Int() : symbol.max;
    if (table_.FindSymbol(name) >= 0) entry.Fail("symbol stated twice");
    table_.symbols.push_back(symbol);
    table_.symbol_names.push_back(name);
  }
}

std::vector<Expr> Parser::ReadExprs(const Reader& source, const Scope& scope) {
  std::vector<Reader> items = source.Items();
  if (items.size() > kMaxRank) {
    source.Fail("got " + std::to_string(items.size()) + " axes, want at most " +
                std::to_string(kMaxRank));
  }
  std::vector<Expr> out;
  for (const Reader& item : items) out.push_back(table_.pool.Compile(item, scope));
  return out;
}

AxisPattern Parser::PatternOf(Expr extent) const {
  AxisPattern pattern;
  pattern.monomial = table_.pool.AsMonomial(extent, &pattern.coefficient, &pattern.symbols);
  if (!pattern.monomial) {
    pattern.symbols.clear();
    table_.pool.CollectSymbols(extent, &pattern.symbols);
  }
  return pattern;
}

void Parser::ParseOperand(const Reader& source) {
  if (source.value().kind != Value::Kind::kObject) source.Fail("want an object");
  Operand operand;
  operand.kind = kOperandKinds.Read(source.Field("kind"));
  bool scalar = operand.kind == Operand::Kind::kScalar;
  if (scalar) {
    source.Fields({"uid", "name", "kind", "dtype", "value"});
  } else {
    source.Fields({"uid", "name", "kind", "dtype", "dim", "stride"},
                  {"optional", "ragged", "reordering_type"});
  }
  operand.uid = source.Field("uid").Int();
  if (operand.uid == Refusal::kNoOperand) source.Field("uid").Fail("uid is reserved");
  operand.name = source.Field("name").String();
  operand.dtype = ReadDType(source.Field("dtype"));
  if (!table_.operands.empty() && operand.uid <= table_.operands.back().uid) {
    source.Field("uid").Fail("got " + std::to_string(operand.uid) + " after " +
                             std::to_string(table_.operands.back().uid) + ", want ascending uids");
  }
  if (scalar) {
    if (operand.dtype->elements_per_slot() > 1) {
      source.Field("dtype").Fail(std::string("got a scalar of ") + operand.dtype->name +
                                 ", want a type of whole bytes");
    }
    ParseScalarDefault(source.Field("value"), &operand);
  } else {
    ParseTensor(source, &operand);
  }
  operand.base = table_.total_rank;
  table_.total_rank += operand.rank;
  LayOut(operand);
  table_.operands.push_back(std::move(operand));
}

void Parser::ParseTensor(const Reader& source, Operand* operand) {
  operand->optional = source.Has("optional") && source.Field("optional").Bool();
  operand->ragged = source.Has("ragged") && source.Field("ragged").Bool();
  operand->dim = ReadExprs(source.Field("dim"), declaration_);
  operand->stride = ReadExprs(source.Field("stride"), declaration_);
  operand->rank = static_cast<int>(operand->dim.size());
  if (operand->dim.size() != operand->stride.size()) {
    source.Field("stride").Fail("got " + std::to_string(operand->stride.size()) +
                                " strides, want " + std::to_string(operand->dim.size()) +
                                ", one for each extent");
  }
  for (int axis = 0; axis < operand->rank; ++axis) {
    Expr extent = operand->dim[axis];
    if (table_.pool.IsConst(extent) && table_.pool.at(extent).value < 0) {
      source.Field("dim").Items()[axis].Fail("got a negative extent");
    }
    operand->patterns.push_back(PatternOf(extent));
  }
  if (operand->dtype->elements_per_slot() > 1) PackDeclaration(source, operand);
  if (!source.Has("reordering_type")) return;
  Reader reordering = source.Field("reordering_type");
  operand->reordered = kReorderings.Read(reordering);
  if (!operand->reordered) return;
  if (operand->dtype->dl.bits != 8) {
    reordering.Fail(std::string("got F8_128x4 of ") + operand->dtype->name +
                    ", want a type of 8 bits");
  }
  if (operand->rank < 2) {
    reordering.Fail("got F8_128x4 of " + std::to_string(operand->rank) +
                    " axes, want at least 2: rows and their scales");
  }
  if (operand->ragged) reordering.Fail("got F8_128x4 of a ragged operand, want one or the other");
}

// From elements, in which a declaration speaks, to slots.
void Parser::PackDeclaration(const Reader& source, Operand* operand) {
  ExprPool& pool = table_.pool;
  int64_t count = operand->dtype->elements_per_slot();
  auto is = [&](Expr expr, int64_t value) {
    return pool.IsConst(expr) && pool.at(expr).value == value;
  };
  auto odd = [&](Expr expr) { return pool.IsConst(expr) && pool.at(expr).value % count != 0; };
  std::string share = ": " + std::to_string(count) + " elements of " + operand->dtype->name +
                      " share a slot along the axis of stride 1";
  int first = -1;
  for (int axis = 0; axis < operand->rank && operand->packed_axis < 0; ++axis) {
    if (!is(operand->stride[axis], 1) || is(operand->dim[axis], 1)) continue;
    if (first < 0) first = axis;
    const AxisPattern& pattern = operand->patterns[axis];
    if (pattern.monomial && pattern.coefficient % count == 0) operand->packed_axis = axis;
  }
  if (operand->packed_axis < 0) operand->packed_axis = first;
  if (first < 0) {
    source.Field("stride").Fail("got no stride 1 on an axis of more than one element, want one" +
                                share);
  }
  operand->element_dim = operand->dim;
  operand->element_stride = operand->stride;
  auto divide = [&](const char* field, int axis, Expr* expr) {
    if (odd(*expr)) {
      source.Field(field).Items()[axis].Fail("got " + std::to_string(pool.at(*expr).value) +
                                             ", want a multiple of " + std::to_string(count) +
                                             share);
    }
    *expr = pool.DivideBy(*expr, count);
  };
  int packed = operand->packed_axis;
  divide("dim", packed, &operand->dim[packed]);
  operand->patterns[packed].per_slot = count;
  for (int axis = 0; axis < operand->rank; ++axis) {
    // A stride of 1 is that of one element, and one that moves nothing may be odd.
    Expr stride = operand->stride[axis];
    if (axis == packed || is(stride, 1) || (odd(stride) && is(operand->dim[axis], 1))) continue;
    divide("stride", axis, &operand->stride[axis]);
  }
}

void Parser::LayOut(const Operand& operand) {
  auto add = [&](Expr value, bool is_extent, std::vector<int64_t>* out) {
    bool known = table_.pool.IsConst(value);
    auto at = static_cast<int>(out->size());
    if (!known) {
      auto index = static_cast<int>(table_.operands.size());
      table_.declared.symbolic.push_back({index, at, value, is_extent});
    }
    out->push_back(known ? table_.pool.at(value).value : 0);
  };
  for (Expr extent : operand.dim) add(extent, true, &table_.declared.dims);
  for (Expr stride : operand.stride) add(stride, false, &table_.declared.strides);
}

void Parser::ParseScalarDefault(const Reader& source, Operand* operand) {
  if (source.value().kind == Value::Kind::kNull) return;
  operand->has_default = true;
  if (source.value().kind == Value::Kind::kBool) {
    operand->number = operand->integer = source.Bool() ? 1 : 0;
    return;
  }
  operand->number = source.Number();
  if (operand->dtype->is_float()) {
    operand->number = RoundTo(*operand->dtype, operand->number);
  } else {
    operand->integer = source.IntIn(operand->dtype->min(), operand->dtype->max());
  }
}

int Parser::OperandAt(const Reader& source, bool scalar) const {
  int index = table_.FindOperand(source.Int());
  if (index < 0) source.Fail("no operand has uid " + std::to_string(source.Int()));
  bool is_scalar = table_.operands[index].kind == Operand::Kind::kScalar;
  if (is_scalar != scalar) {
    source.Fail("operand " + std::to_string(source.Int()) +
                (is_scalar ? " is a scalar, want a tensor" : " is a tensor, want a scalar"));
  }
  return index;
}

int Parser::SliceAt(const Reader& source, const Branch& branch) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < branch.slices.size(); ++i) {
    if (branch.slices[i].name == source.String()) return static_cast<int>(i);
    names.push_back(branch.slices[i].name);
  }
  source.Fail("no slice is named '" + source.String() + "'" +
              (names.empty() ? "" : ", want " + Choices(names)));
}

void Parser::ReadTarget(const Reader& source, const Branch& branch, int* operand,
                        int* slice) const {
  if (source.Has("operand") == source.Has("slice")) {
    source.Fail("want one of 'operand' and 'slice'");
  }
  if (source.Has("operand")) {
    *operand = OperandAt(source.Field("operand"), false);
  } else {
    *slice = SliceAt(source.Field("slice"), branch);
  }
}

void Parser::ParseCheck(const Reader& source) {
  if (source.value().kind != Value::Kind::kObject) source.Fail("want an object");
  Check check;
  check.rule = kRules.Read(source.Field("rule"));
  ExprPool& pool = table_.pool;
  switch (check.rule) {
    case Check::Rule::kAlignment:
      source.Fields({"rule", "operand", "bytes"});
      check.operand = OperandAt(source.Field("operand"), false);
      check.bytes = source.Field("bytes").IntIn(1, kMaxAlign);
      break;
    case Check::Rule::kUnitStride: {
      source.Fields({"rule", "operand", "axis"});
      check.operand = OperandAt(source.Field("operand"), false);
      int rank = table_.operands[check.operand].rank;
      if (rank == 0) source.Fail("a tensor without axes has no stride");
      check.axis = static_cast<int>(source.Field("axis").IntIn(0, rank - 1));
      break;
    }
    case Check::Rule::kDivisible:
      source.Fields({"rule", "expr", "by"}, {"operand"});
      check.a = pool.Compile(source.Field("expr"), full_);
      check.b = pool.Compile(source.Field("by"), full_);
      break;
    case Check::Rule::kRange:
      source.Fields({"rule", "expr", "min", "max"}, {"operand"});
      check.a = pool.Compile(source.Field("expr"), full_);
      check.min = pool.Compile(source.Field("min"), full_);
      check.max = pool.Compile(source.Field("max"), full_);
      break;
    case Check::Rule::kEqual:
      source.Fields({"rule", "a", "b"}, {"operand"});
      check.a = pool.Compile(source.Field("a"), full_);
      check.b = pool.Compile(source.Field("b"), full_);
      break;
  }
  if (check.operand < 0 && source.Has("operand")) {
    Reader uid = source.Field("operand");
    check.operand = table_.FindOperand(uid.Int());
    if (check.operand < 0) uid.Fail("no operand has uid " + std::to_string(uid.Int()));
  }
  table_.checks.push_back(check);
}

void Parser::ParseBranch(const std::string& name, const Reader& source) {
  source.Fields({"workspace", "steps"});
  Branch branch;
  branch.name = name;
  for (const Branch& other : table_.branches) {
    if (other.name == name) source.Fail("branch stated twice");
  }
  for (const Reader& slice : source.Field("workspace").Items()) ParseSlice(slice, &branch);
  for (const Reader& step : source.Field("steps").Items()) ParseStep(step, &branch);
  table_.max_slices = std::max(table_.max_slices, static_cast<int>(branch.slices.size()));
  table_.branches.push_back(std::move(branch));
}

void Parser::ParseSlice(const Reader& source, Branch* branch) {
  source.Fields({"name", "bytes", "align"});
  Slice slice;
  slice.name = source.Field("name").String();
  for (const Slice& other : branch->slices) {
    if (other.name == slice.name) source.Field("name").Fail("slice stated twice");
  }
  slice.bytes = table_.pool.Compile(source.Field("bytes"), size_);
  slice.align = ReadPowerOfTwo(source.Field("align"));
  branch->align = std::max(branch->align, slice.align);
  branch->slices.push_back(std::move(slice));
}

void Parser::ParseStep(const Reader& source, Branch* branch) {
  if (source.value().kind != Value::Kind::kObject) source.Fail("want an object");
  const std::string& kind = source.Field("step").String();
  Step step;
  if (kind == "kernel") {
    step.kind = Step::Kind::kKernel;
    ParseKernelStep(source, *branch, &step);
  } else if (kind == "fill") {
    step.kind = Step::Kind::kFill;
    ParseFillStep(source, *branch, &step);
  } else if (kind == "backend") {
    step.kind = Step::Kind::kBackend;
    ParseBackendStep(source, *branch, &step);
  } else {
    source.Field("step").Fail("got '" + kind + "', want " + Choices({"kernel", "fill", "backend"}));
  }
  branch->steps.push_back(std::move(step));
}

void Parser::ParseKernelStep(const Reader& source, const Branch& branch, Step* step) {
  source.Fields({"step", "kernel", "args"});
  step->kernel = static_cast<int>(source.Field("kernel").IntIn(0, 1 << 20));
  table_.num_kernels = std::max(table_.num_kernels, step->kernel + 1);
  int views = 0;
  int axes = 0;
  for (const Reader& item : source.Field("args").Items()) {
    Arg arg = ParseArg(item, branch);
    step->has_launch |= arg.kind == Arg::Kind::kLaunch;
    views += arg.kind == Arg::Kind::kTensor;
    axes += static_cast<int>(arg.dim.size());
    step->args.push_back(std::move(arg));
  }
  table_.max_args = std::max(table_.max_args, static_cast<int>(step->args.size()));
  table_.max_views = std::max(table_.max_views, views);
  table_.max_view_axes = std::max(table_.max_view_axes, axes);
}

void Parser::ParseFillStep(const Reader& source, const Branch& branch, Step* step) {
  source.Fields({"step", "bytes", "pattern", "width"}, {"operand", "slice"});
  ReadTarget(source, branch, &step->operand, &step->slice);
  step->bytes = table_.pool.Compile(source.Field("bytes"), full_);
  step->width = static_cast<int>(source.Field("width").IntIn(1, 4));
  if (step->width == 3) source.Field("width").Fail("got 3, want 1, 2 or 4");
  int64_t limit = (int64_t{1} << (8 * step->width)) - 1;
  step->pattern = static_cast<uint32_t>(source.Field("pattern").IntIn(0, limit));
}

void Parser::ParseBackendStep(const Reader& source, const Branch& branch, Step* step) {
  source.Fields({"step", "blob", "uids"}, {"slice"});
  step->blob = static_cast<int>(source.Field("blob").IntIn(0, 1 << 20));
  table_.num_blobs = std::max(table_.num_blobs, step->blob + 1);
  if (source.Has("slice")) step->slice = SliceAt(source.Field("slice"), branch);
  for (const Reader& uid : source.Field("uids").Items()) {
    int index = table_.FindOperand(uid.Int());
    if (index < 0) uid.Fail("no operand has uid " + std::to_string(uid.Int()));
    const Operand& operand = table_.operands[index];
    if (operand.kind == Operand::Kind::kScalar && !IsStorable(*operand.dtype)) {
      uid.Fail(std::string("a scalar of ") + operand.dtype->name + " cannot be passed");
    }
    if (std::count(step->operands.begin(), step->operands.end(), index) != 0) {
      uid.Fail("uid stated twice");
    }
    step->operands.push_back(index);
  }
}

Arg Parser::ParseArg(const Reader& source, const Branch& branch) {
  if (source.value().kind != Value::Kind::kObject) source.Fail("want an object");
  Arg arg;
  arg.kind = kArgs.Read(source.Field("arg"));
  switch (arg.kind) {
    case Arg::Kind::kTensor:
      ParseTensorArg(source, branch, &arg);
      break;
    case Arg::Kind::kInt:
      source.Fields({"arg", "value"});
      arg.value = table_.pool.Compile(source.Field("value"), full_);
      break;
    case Arg::Kind::kFloat:
      source.Fields({"arg", "value"});
      arg.number = source.Field("value").Number();
      break;
    case Arg::Kind::kScalar:
      source.Fields({"arg", "operand"});
      arg.operand = OperandAt(source.Field("operand"), true);
      break;
    case Arg::Kind::kNone:
    case Arg::Kind::kLaunch:
      source.Fields({"arg"});
      break;
  }
  return arg;
}

void Parser::ParseTensorArg(const Reader& source, const Branch& branch, Arg* arg) {
  source.Fields({"arg", "dim", "stride"}, {"operand", "slice", "offset", "dtype"});
  ReadTarget(source, branch, &arg->operand, &arg->slice);
  if (source.Has("dtype")) {
    arg->dtype = ReadDType(source.Field("dtype"));
  } else if (arg->operand >= 0) {
    arg->dtype = table_.operands[arg->operand].dtype;
  } else {
    source.Fail("a view of a slice needs a 'dtype'");
  }
  arg->dim = ReadExprs(source.Field("dim"), full_);
  arg->stride = ReadExprs(source.Field("stride"), full_);
  if (arg->dim.size() != arg->stride.size()) {
    source.Field("stride").Fail("got " + std::to_string(arg->stride.size()) + " strides, want " +
                                std::to_string(arg->dim.size()) + ", one for each extent");
  }
  if (source.Has("offset")) arg->value = table_.pool.Compile(source.Field("offset"), full_);
}

void Parser::ParseDispatch(const Reader& source) {
  std::vector<Reader> guards = source.Items();
  if (guards.empty()) source.Fail("got no guard, want at least one");
  for (const Reader& item : guards) {
    item.Fields({"when", "branch"});
    Guard guard{table_.pool.CompilePredicate(item.Field("when"), full_), -1, {}};
    guard.split = table_.pool.SplitBounds(guard.when);
    const std::string& name = item.Field("branch").String();
    std::vector<std::string> names;
    for (size_t i = 0; i < table_.branches.size(); ++i) {
      if (table_.branches[i].name == name) guard.branch = static_cast<int>(i);
      names.push_back(table_.branches[i].name);
    }
    if (guard.branch < 0) {
      item.Field("branch").Fail("no branch is named '" + name + "'" +
                                (names.empty() ? "" : ", want " + Choices(names)));
    }
    table_.dispatch.push_back(guard);
  }
}

void Parser::FindAddressMasks() {
  auto reads = [&](int operand, int64_t bytes) {
    if ((bytes & (bytes - 1)) != 0) table_.can_settle = false;
    uintptr_t& mask = table_.operands[operand].address_mask;
    mask = std::max(mask, static_cast<uintptr_t>(bytes) - 1);
  };
  for (size_t i = 0; i < table_.operands.size(); ++i) {
    bool scalar = table_.operands[i].kind == Operand::Kind::kScalar;
    (scalar ? table_.scalars : table_.tensors).push_back(static_cast<int>(i));
    if (!scalar) reads(static_cast<int>(i), table_.operands[i].dtype->bytes());
  }
  for (const Check& check : table_.checks) {
    if (check.rule == Check::Rule::kAlignment) reads(check.operand, check.bytes);
  }
  for (size_t i = 0; i < table_.pool.size(); ++i) {
    const Node& node = table_.pool.at(static_cast<Expr>(i));
    if (node.op == Op::kAligned) reads(node.a, node.value);
  }
}

}  // namespace

int Table::FindOperand(int64_t uid) const {
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].uid == uid) return static_cast<int>(i);
  }
  return -1;
}

int Table::FindSymbol(const std::string& name) const {
  auto found = std::find(symbol_names.begin(), symbol_names.end(), name);
  return found == symbol_names.end() ? -1 : static_cast<int>(found - symbol_names.begin());
}

Table ParseTable(const Value& value) { return Parser().Parse(Reader(value, "")); }

void NeedParts(const Table& table, size_t kernels, size_t blobs) {
  auto need = [](const std::string& what, int want, size_t got) {
    if (static_cast<int>(got) >= want) return;
    throw TableError("branches: a step names " + what + " " + std::to_string(want - 1) + ", got " +
                     std::to_string(got) + " " + what + "s");
  };
  need("kernel", table.num_kernels, kernels);
  need("blob", table.num_blobs, blobs);
}

}  // namespace cudnn_aot
