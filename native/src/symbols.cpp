#include "symbols.h"

#include <algorithm>

#include "arithmetic.h"

namespace cudnn_aot {
namespace {

// Symbol values while the shape of one operand is tried; kept only if the whole shape fits.
class Unifier {
 public:
  // The shapes to fit are in elements (an override's), or in slots (a buffer's).
  enum class Unit { kElement, kSlot };

  Unifier(const Table& table, Unit unit, Frame* frame) : table_(table), unit_(unit), frame_(frame) {
    std::copy_n(frame->symbols, table.symbols.size(), now_.values);
    std::copy_n(frame->bound, table.symbols.size(), now_.bound);
  }

  // Fits `shape` to the declared extents axis by axis.
  bool FitAxes(const Operand& operand, const int64_t* shape, int rank) {
    if (rank != operand.rank) return false;
    for (int axis = 0; axis < rank; ++axis) {
      if (!Fit(operand, axis, shape[axis])) return false;
    }
    return true;
  }

  // Fits `shape` to the declared extents where either side may have unit axes more.
  bool FitUpToUnitAxes(const Operand& operand, const int64_t* shape, int rank);

  void Commit() const {
    std::copy_n(now_.values, table_.symbols.size(), frame_->symbols);
    std::copy_n(now_.bound, table_.symbols.size(), frame_->bound);
  }

 private:
  struct State {
    int64_t values[kMaxSymbols] = {};
    bool bound[kMaxSymbols] = {};

    bool operator==(const State& other) const {
      for (int i = 0; i < kMaxSymbols; ++i) {
        if (bound[i] != other.bound[i] || (bound[i] && values[i] != other.values[i])) return false;
      }
      return true;
    }
  };

  bool Fit(const Operand& operand, int axis, int64_t extent);
  void FitFrom(const Operand& operand, int axis, const int64_t* shape, int rank, int next);

  const Table& table_;
  Unit unit_;
  Frame* frame_;
  State now_;
  int solutions_ = 0;
  State solution_;
};

bool Unifier::Fit(const Operand& operand, int axis, int64_t extent) {
  const AxisPattern& pattern = operand.patterns[axis];
  if (unit_ == Unit::kSlot && __builtin_mul_overflow(extent, pattern.per_slot, &extent)) {
    return false;
  }
  int64_t factor = pattern.coefficient;
  int unknown = -1;
  for (int symbol : pattern.symbols) {
    if (now_.bound[symbol]) {
      if (pattern.monomial && __builtin_mul_overflow(factor, now_.values[symbol], &factor)) {
        return false;
      }
    } else if (unknown >= 0 || !pattern.monomial) {
      return false;  // more than one unknown factor, or a form that has no inverse here
    } else {
      unknown = symbol;
    }
  }
  if (unknown >= 0) {
    if (factor <= 0 || extent % factor != 0) return false;
    now_.values[unknown] = extent / factor;
    now_.bound[unknown] = true;
    return true;
  }
  if (pattern.monomial) return factor == extent;
  Env env;
  env.symbols = now_.values;
  const auto& declared = operand.packed_axis < 0 ? operand.dim : operand.element_dim;
  try {
    return table_.pool.Eval(declared[axis], env) == extent;
  } catch (const Refusal&) {
    return false;
  }
}

bool Unifier::FitUpToUnitAxes(const Operand& operand, const int64_t* shape, int rank) {
  const State before = now_;
  if (FitAxes(operand, shape, rank)) return true;
  // Next the usual case: the declaration has constant unit axes that the buffer lacks.
  now_ = before;
  int next = 0;
  bool fits = true;
  for (int axis = 0; axis < operand.rank && fits; ++axis) {
    const AxisPattern& pattern = operand.patterns[axis];
    if (pattern.symbols.empty() && pattern.coefficient == pattern.per_slot) continue;
    fits = next < rank && Fit(operand, axis, shape[next++]);
  }
  if (fits && next == rank) return true;
  // Then any way to skip unit axes on either side, if all ways bind the same values.
  now_ = before;
  FitFrom(operand, 0, shape, rank, 0);
  now_ = solution_;
  return solutions_ == 1;
}

void Unifier::FitFrom(const Operand& operand, int axis, const int64_t* shape, int rank, int next) {
  if (solutions_ > 1) return;
  if (axis == operand.rank && next == rank) {
    if (solutions_ == 0 || !(now_ == solution_)) ++solutions_;
    solution_ = now_;
    return;
  }
  const State before = now_;
  if (axis < operand.rank && next < rank && Fit(operand, axis, shape[next])) {
    FitFrom(operand, axis + 1, shape, rank, next + 1);
  }
  now_ = before;
  if (next < rank && shape[next] == 1) FitFrom(operand, axis, shape, rank, next + 1);
  now_ = before;
  if (axis < operand.rank && Fit(operand, axis, 1)) {
    FitFrom(operand, axis + 1, shape, rank, next);
  }
  now_ = before;
}

bool MentionsUnbound(const Operand& operand, const Frame& frame) {
  for (const AxisPattern& pattern : operand.patterns) {
    for (int symbol : pattern.symbols) {
      if (!frame.bound[symbol]) return true;
    }
  }
  return false;
}

void CheckRanges(const Table& table, const Frame& frame, const Operand* binder) {
  for (size_t i = 0; i < table.symbols.size(); ++i) {
    if (frame.bound[i]) CheckRange(table.symbols[i], frame.symbols[i], binder);
  }
}

}  // namespace

void CheckRange(const Symbol& symbol, int64_t value, const Operand* binder) {
  if (value >= symbol.min && value <= symbol.max && value % symbol.multiple_of == 0) return;
  std::string want =
      std::to_string(symbol.min) + " to " + std::to_string(symbol.max) +
      (symbol.multiple_of == 1 ? "" : ", a multiple of " + std::to_string(symbol.multiple_of));
  throw Refusal("symbol_range", binder == nullptr ? Refusal::kNoOperand : binder->uid,
                "symbol '" + symbol.name + "': got " + std::to_string(value) +
                    (binder == nullptr ? "" : " from " + OperandName(*binder)) + ", want " + want);
}

void RefuseSymbol(const Table& table, const std::string& shown) {
  throw Refusal(
      "symbol_unknown", Refusal::kNoOperand,
      "symbols: got " + shown + ", want " +
          (table.symbols.empty() ? "none, the graph has no symbol" : Choices(table.symbol_names)));
}

void BindSymbols(const Table& table, const Call& call, Frame* frame) {
  for (int i = 0; i < call.num_symbols; ++i) {
    frame->symbols[call.symbols[i].symbol] = call.symbols[i].value;
    frame->bound[call.symbols[i].symbol] = true;
  }
  CheckRanges(table, *frame, nullptr);
  for (int i = 0; i < call.num_overrides; ++i) {
    const Override& given = call.overrides[i];
    const Operand& operand = table.operands[given.operand];
    Unifier unifier(table, Unifier::Unit::kElement, frame);
    if (!unifier.FitAxes(operand, given.shape.data(), static_cast<int>(given.shape.size()))) {
      continue;  // compared again, and refused, once all symbols are known
    }
    unifier.Commit();
    CheckRanges(table, *frame, &operand);
  }
  const Buffer* other_width = nullptr;  // a buffer that would bind, were it of the declared width
  const Operand* other_operand = nullptr;
  for (size_t i = 0; i < table.operands.size(); ++i) {
    const Operand& operand = table.operands[i];
    const Buffer& buffer = call.buffers[i];
    if (buffer.kind != Buffer::Kind::kTensor || !MentionsUnbound(operand, *frame)) continue;
    // The extents of a packed buffer are tokens, those of a reordered one whole tiles.
    if (operand.ragged || operand.reordered) continue;
    Unifier unifier(table, Unifier::Unit::kSlot, frame);
    if (!unifier.FitUpToUnitAxes(operand, buffer.shape, buffer.ndim)) continue;
    if (BitsOf(buffer.dtype) != BitsOf(operand.dtype->dl)) {
      if (other_width == nullptr) {
        other_width = &buffer;
        other_operand = &operand;
      }
      continue;
    }
    unifier.Commit();
    CheckRanges(table, *frame, &operand);
  }
  for (size_t i = 0; i < table.symbols.size(); ++i) {
    if (frame->bound[i]) continue;
    if (other_width != nullptr) {
      Refuse("dtype", *other_operand,
             Describe(other_width->dtype) + " " + List(other_width->shape, other_width->ndim),
             other_operand->dtype->name);
    }
    throw Refusal("symbol_unbound", Refusal::kNoOperand,
                  "symbol '" + table.symbols[i].name +
                      "': got no buffer of its operands' declared extents, want one or symbols={'" +
                      table.symbols[i].name + "': ...}");
  }
}

}  // namespace cudnn_aot
