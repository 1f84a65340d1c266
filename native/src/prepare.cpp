// Plan::Prepare and Plan::WorkspaceBytes: what can be said before any call.
#include <algorithm>
#include <set>

#include "arithmetic.h"
#include "cuda.h"
#include "error.h"
#include "ffi.h"
#include "layout.h"
#include "plan.h"
#include "symbols.h"

namespace cudnn_aot {
namespace {

constexpr size_t kMaxAssumptions = 4096;  // symbol values tried for one guard

// How Prepare lays out operands while it looks for a call that a guard takes.
enum class Layout { kDeclared, kPadded, kTransposed, kTransposedPadded };
constexpr Layout kLayouts[] = {Layout::kDeclared, Layout::kPadded, Layout::kTransposed,
                               Layout::kTransposedPadded};
constexpr int64_t kPad = 256;  // elements: a multiple of every vector width and TMA stride

void CollectConstants(const ExprPool& pool, std::set<int64_t>* out) {
  for (size_t i = 0; i < pool.size(); ++i) {
    const Node& node = pool.at(static_cast<Expr>(i));
    if (node.op == Op::kConst) out->insert(node.value);
  }
}

std::vector<int64_t> Candidates(const Symbol& symbol, const std::set<int64_t>& constants) {
  std::set<int64_t> out;
  auto offer = [&](int64_t value) {
    value = CeilDivPositive(std::max(value, symbol.min), symbol.multiple_of) * symbol.multiple_of;
    if (value <= symbol.max) out.insert(value);
  };
  for (int64_t constant : constants) {
    if (constant >= INT32_MAX || constant <= -INT32_MAX) continue;
    offer(constant - 1);
    offer(constant);
    offer(constant + 1);
  }
  for (int64_t power = 1; power <= 65536; power *= 2) offer(power);
  offer(symbol.min);
  offer(std::min(symbol.max, int64_t{INT32_MAX}) / symbol.multiple_of * symbol.multiple_of);
  std::vector<int64_t> values(out.begin(), out.end());
  // The hint first: it is the value that the plan was made for.
  auto hint = std::find(values.begin(), values.end(), symbol.hint);
  if (hint != values.end()) std::rotate(values.begin(), hint, hint + 1);
  return values;
}

void ApplyLayout(const Table& table, Layout layout, Frame* frame) {
  for (const Operand& operand : table.operands) {
    int64_t* stride = frame->strides + operand.base;
    bool transpose = layout == Layout::kTransposed || layout == Layout::kTransposedPadded;
    if (transpose && operand.rank >= 2) {
      int64_t* dim = frame->dims + operand.base;
      bool row_major = stride[operand.rank - 1] == 1;
      stride[operand.rank - 1] = row_major ? std::max<int64_t>(dim[operand.rank - 2], 1) : 1;
      stride[operand.rank - 2] = row_major ? 1 : std::max<int64_t>(dim[operand.rank - 1], 1);
    }
    if (layout != Layout::kPadded && layout != Layout::kTransposedPadded) continue;
    for (int axis = 0; axis < operand.rank; ++axis) {
      if (stride[axis] > 1) stride[axis] = CeilDivPositive(stride[axis], kPad) * kPad;
    }
  }
}

// An upper bound for the bytes of whole 128x4 tiles, whichever of the last two axes has the rows.
int64_t BoundTiles(const ExprPool& pool, const Operand& operand, const Ranges& ranges) {
  int64_t largest = 0;
  for (int rows : {operand.rank - 2, operand.rank - 1}) {
    __int128 bytes = 1;
    for (int axis = 0; axis < operand.rank; ++axis) {
      int64_t tile = axis == rows ? 128 : axis >= operand.rank - 2 ? 4 : 1;
      __int128 extent = std::max<int64_t>(pool.Bound(operand.dim[axis], ranges).high, 0);
      bytes = std::min<__int128>(bytes * ((extent + tile - 1) / tile * tile), INT64_MAX);
    }
    largest = std::max(largest, static_cast<int64_t>(bytes));
  }
  return largest;
}

// base + a * b for a and b that are not negative, at most INT64_MAX.
int64_t Saturate(int64_t base, int64_t a, int64_t b) {
  __int128 sum = static_cast<__int128>(std::max<int64_t>(a, 0)) * std::max<int64_t>(b, 0) + base;
  return sum > INT64_MAX ? INT64_MAX : static_cast<int64_t>(sum);
}

}  // namespace

// Fills the frame with symbols, layouts and presences for which guard `guard` holds, all
// addresses null; false if none of those tried does, and then with a plain one.
bool Plan::AssumeCall(int guard, Frame* frame) const {
  const Guard& wanted = table_.dispatch[guard];
  std::set<int64_t> constants;
  CollectConstants(table_.pool, &constants);
  std::vector<std::vector<int64_t>> candidates;
  size_t combinations = 1;
  for (const Symbol& symbol : table_.symbols) {
    candidates.push_back(Candidates(symbol, constants));
    if (candidates.back().empty()) candidates.back().push_back(symbol.min);
    combinations = std::min(combinations * candidates.back().size(), kMaxAssumptions);
  }
  auto assume = [&](size_t combination, Layout layout, bool present) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      frame->symbols[i] = candidates[i][combination % candidates[i].size()];
      combination /= candidates[i].size();
    }
    ResolveDeclarations(table_, frame);
    ApplyLayout(table_, layout, frame);
    for (size_t i = 0; i < table_.operands.size(); ++i) {
      const Operand& operand = table_.operands[i];
      Slot& slot = frame->slots[i];
      slot = Slot{};
      slot.present = present || !operand.optional;
      slot.nbytes =
          ReachOf(operand, frame->dims + operand.base, frame->strides + operand.base).bytes();
      frame->scalars[i] = {operand.number, operand.integer};
    }
  };
  for (Layout layout : kLayouts) {
    for (bool present : {true, false}) {
      for (size_t combination = 0; combination < combinations; ++combination) {
        try {
          assume(combination, layout, present);
          if (table_.pool.Holds(wanted.when, frame->env())) return true;
        } catch (const Refusal&) {  // an overflow on the way: not this one
        }
      }
    }
  }
  assume(0, Layout::kDeclared, true);
  return false;
}

void Plan::Prepare(int device) const {
  if (!table_.cuda) return;  // a host kernel's code is loaded with its library
  Frame frame(table_);
  frame.device = {kDLCUDA, device};
  frame.attrs[kAttrSmCount] = cuda::SmCount(device);
  cuda::DeviceScope on_device(device);
  ffi::StreamScope on_stream(frame.device, nullptr);
  std::set<int> done;  // kernels
  for (size_t i = 0; i < table_.dispatch.size(); ++i) {
    const Branch& branch = table_.branches[table_.dispatch[i].branch];
    bool taken = AssumeCall(static_cast<int>(i), &frame);
    std::fill_n(frame.slice_offset, branch.slices.size(), 0);
    std::fill_n(frame.slice_bytes, branch.slices.size(), 0);
    for (const Step& step : branch.steps) {
      if (step.kind == Step::Kind::kBackend) PrepareBackend(branch, step, device);
      if (step.kind != Step::Kind::kKernel || !step.has_launch || done.count(step.kernel) != 0) {
        continue;
      }
      BuildArgs(branch, step, false, &frame);
      // A kernel's own argument checks may object where no fitting call was found: then no call
      // that was thought of takes the branch, and its code loads with the first one that does.
      if (CallKernel(branch, step, false, taken, frame.args)) done.insert(step.kernel);
    }
  }
}

int64_t Plan::WorkspaceBytes(const SymbolValue* given, int count, Interval sm_counts) const {
  Ranges all;
  for (const Symbol& symbol : table_.symbols) {
    all.symbols.push_back({CeilDivPositive(symbol.min, symbol.multiple_of) * symbol.multiple_of,
                           symbol.max / symbol.multiple_of * symbol.multiple_of});
  }
  for (int i = 0; i < count; ++i) {
    CheckRange(table_.symbols[given[i].symbol], given[i].value, nullptr);
    all.symbols[given[i].symbol] = {given[i].value, given[i].value};
  }
  all.attrs[kAttrSmCount] = sm_counts;
  for (const Operand& operand : table_.operands) {
    // A larger buffer may ask for more workspace than this; such a call is refused, not overrun.
    if (operand.reordered) {
      all.nbytes.push_back(BoundTiles(table_.pool, operand, all));
      continue;
    }
    int64_t span = 0;
    for (int axis = 0; axis < operand.rank; ++axis) {
      Interval dim = table_.pool.Bound(operand.dim[axis], all);
      Interval stride = table_.pool.Bound(operand.stride[axis], all);
      span = Saturate(span, dim.high - 1, stride.high);
    }
    all.nbytes.push_back(operand.kind == Operand::Kind::kScalar
                             ? 0
                             : Saturate(operand.dtype->bytes(), span, operand.dtype->bytes()));
  }

  int64_t largest = 0;
  for (const Guard& guard : table_.dispatch) {
    Ranges taken = all;
    // Twice: a later conjunct can tighten what an earlier one compared with.
    bool possible = table_.pool.Narrow(guard.when, true, &taken) &&
                    table_.pool.Narrow(guard.when, true, &taken);
    if (possible) {
      int64_t end = 0;
      for (const Slice& slice : table_.branches[guard.branch].slices) {
        int64_t bytes = std::max<int64_t>(table_.pool.Bound(slice.bytes, taken).high, 0);
        end = CheckedAdd(CheckedMul(CeilDivPositive(end, slice.align), slice.align), bytes);
      }
      largest = std::max(largest, end);
    }
    // The guards after this one see only calls that this one left.
    if (!table_.pool.Narrow(guard.when, false, &all)) break;
  }
  return largest;
}

}  // namespace cudnn_aot
