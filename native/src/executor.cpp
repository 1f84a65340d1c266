#include "executor.h"

#include <algorithm>
#include <string>
#include <vector>

#include "cuda.h"
#include "error.h"
#include "symbols.h"
#include "tensor.h"
#include "text.h"

namespace cudnn_aot {
namespace {

int GatherSymbols(const Table& table, int32_t count, const char* const* names,
                  const int64_t* values, SymbolValue* out) {
  for (int32_t i = 0; i < count; ++i) {
    int symbol = table.FindSymbol(names[i]);
    if (symbol < 0) RefuseSymbol(table, Quoted(names[i]));
    for (int32_t k = 0; k < i; ++k) {
      if (out[k].symbol != symbol) continue;
      throw Refusal("symbol_range", Refusal::kNoOperand,
                    std::string("symbol '") + names[i] + "': got it twice, want it once");
    }
    out[i] = {symbol, values[i]};
  }
  return count;
}

// The buffers of a call, by operand, in room that the stack has for most tables.
class Buffers {
 public:
  Buffers(const Table& table, const TensorCall& call) : table_(table) {
    if (table.operands.size() > kInline) more_.resize(table.operands.size());
    for (int32_t i = 0; i < call.num_tensors; ++i) {
      int operand = table.FindOperand(call.uids[i]);
      if (operand >= 0 && call.tensors[i] != nullptr) Bind(operand, *call.tensors[i]);
    }
  }
  const Buffer* data() const { return more_.empty() ? inline_ : more_.data(); }

 private:
  static constexpr size_t kInline = 16;

  void Bind(int index, const DLTensor& tensor) {
    const Operand& operand = table_.operands[index];
    Buffer& buffer = more_.empty() ? inline_[index] : more_[index];
    if (buffer.kind != Buffer::Kind::kAbsent) {
      throw Refusal("name", operand.uid,
                    "got uid " + std::to_string(operand.uid) + " twice, want each once");
    }
    if (operand.kind != Operand::Kind::kScalar) return DescribeTensor(tensor, &buffer);
    Buffer element;
    DescribeTensor(tensor, &element);
    std::string name = OperandName(operand);
    LoadElement(element, *operand.dtype, {name.c_str(), operand.uid}, &buffer);
  }

  const Table& table_;
  Buffer inline_[kInline];
  std::vector<Buffer> more_;
};

unsigned NumberOfThread() {
  static std::atomic<unsigned> next{0};
  static thread_local unsigned number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

}  // namespace

void Executor::Execute(const TensorCall& given) {
  const Table& table = plan_.table();
  Buffers buffers(table, given);
  Buffer workspace;
  if (given.workspace != nullptr) {
    workspace.kind = Buffer::Kind::kTensor;
    workspace.data = static_cast<char*>(given.workspace);
    workspace.device = table.cuda ? DLDevice{kDLCUDA, kUnknownDevice} : DLDevice{kDLCPU, 0};
    workspace.dtype = {kDLUInt, 8, 1};
    workspace.ndim = 1;
    workspace.shape = &given.workspace_bytes;
  }
  SymbolValue symbols[kMaxSymbols];
  Call call;
  call.buffers = buffers.data();
  call.workspace = &workspace;
  call.symbols = symbols;
  call.num_symbols = GatherSymbols(table, given.num_symbols, given.symbols, given.values, symbols);
  Run(call, given.stream);
}

void Executor::Run(const Call& call, void* stream) {
  const Table& table = plan_.table();
  Shard& shard = shards_[NumberOfThread() % kShards];
  std::shared_ptr<Settled> settled;
  {
    std::lock_guard<std::mutex> lock(shard.mutex);
    const auto* found = shard.recent.Find(table, call, [&] { return devices_.Current(); });
    if (found != nullptr) settled = *found;  // held, since others may replace it
  }
  if (settled != nullptr) {
    if (table.cuda) cuda::RefuseAfterFork();
    return plan_.Run(*settled, call, stream);
  }
  bool named = false;
  DLDevice device = devices_.Find(table, call, &named);
  Frame frame(table);
  plan_.Resolve(call, device, &frame);
  if (table.can_settle) {
    {
      std::lock_guard<std::mutex> lock(shard.mutex);
      settled = shard.recent.Take();
    }
    // The last call that ran on a reused entry may have been another thread's.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (settled != nullptr && plan_.Settle(call, named, &frame, settled.get())) {
      {
        std::lock_guard<std::mutex> lock(shard.mutex);
        shard.recent.Keep(settled);
      }
      return plan_.Run(*settled, call, stream);
    }
  }
  plan_.Run(&frame, stream);
}

void Executor::Prepare(int device) {
  bool cuda = plan_.table().cuda;
  if (device < Devices::kCurrent) {
    std::string kind = cuda ? "cuda" : "cpu";
    throw StoreFailure(Code::kUsage, "bad device: got " + std::to_string(device) + " for a " +
                                         kind + " plan, want an index, or -1 for the current one");
  }
  if (!cuda) return;
  cuda::RefuseAfterFork();
  if (device == Devices::kCurrent) device = devices_.Current();
  devices_.Ensure(device);
  plan_.Prepare(device);
}

int64_t Executor::WorkspaceBytes(int32_t num_symbols, const char* const* symbols,
                                 const int64_t* values) const {
  SymbolValue given[kMaxSymbols];
  int count = GatherSymbols(plan_.table(), num_symbols, symbols, values, given);
  return plan_.WorkspaceBytes(given, count, devices_.SmCounts());
}

void Executor::DeclaredLayout(int64_t uid, int32_t num_symbols, const char* const* symbols,
                              const int64_t* values, int64_t* dim, int64_t* stride) const {
  const Table& table = plan_.table();
  int operand = table.FindOperand(uid);
  if (operand < 0) {
    std::string want;
    for (const Operand& known : table.operands) {
      want += (want.empty() ? "" : ", ") + OperandName(known);
    }
    throw Refusal("name", Refusal::kNoOperand,
                  "got uid " + std::to_string(uid) + ", want that of " + want);
  }
  SymbolValue given[kMaxSymbols];
  int count = GatherSymbols(table, num_symbols, symbols, values, given);
  Frame frame(table);
  for (int i = 0; i < count; ++i) {
    CheckRange(table.symbols[given[i].symbol], given[i].value, nullptr);
    frame.symbols[given[i].symbol] = given[i].value;
    frame.bound[given[i].symbol] = true;
  }
  for (size_t i = 0; i < table.symbols.size(); ++i) {
    if (frame.bound[i]) continue;
    throw Refusal("symbol_unbound", Refusal::kNoOperand,
                  "symbol '" + table.symbols[i].name + "': got no value, want one");
  }
  ResolveDeclarations(table, &frame);
  const Operand& declared = table.operands[operand];
  std::copy_n(frame.dims + declared.base, declared.rank, dim);
  std::copy_n(frame.strides + declared.base, declared.rank, stride);
}

}  // namespace cudnn_aot
