// The C interface of the public header: no exception and no C++ type crosses it.
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>

#include "cudnn_aot.h"
#include "error.h"
#include "store.h"
#include "tensor.h"

using cudnn_aot::Code;
using cudnn_aot::ErrorValue;
using cudnn_aot::Operand;
using cudnn_aot::Store;
using cudnn_aot::StoredPlan;
using cudnn_aot::Symbol;
using cudnn_aot::TensorCall;

static_assert(sizeof(DLTensor) == sizeof(cudnn_aot::DLTensor) &&
                  offsetof(DLTensor, shape) == offsetof(cudnn_aot::DLTensor, shape),
              "DLPack as the header and as the library have it");
static_assert(static_cast<int>(Code::kInternal) == CUDNN_AOT_INTERNAL_ERROR &&
                  static_cast<int>(Code::kRefused) == CUDNN_AOT_REFUSED_ERROR &&
                  static_cast<int>(Code::kLaunch) == CUDNN_AOT_LAUNCH_ERROR &&
                  static_cast<int>(Code::kRequirement) == CUDNN_AOT_REQUIREMENT_ERROR &&
                  static_cast<int>(Code::kGraphNotSupported) ==
                      CUDNN_AOT_GRAPH_NOT_SUPPORTED_ERROR &&
                  static_cast<int>(Code::kNotInStore) == CUDNN_AOT_NOT_IN_STORE_ERROR &&
                  static_cast<int>(Code::kDamaged) == CUDNN_AOT_DAMAGED_ERROR &&
                  static_cast<int>(Code::kStore) == CUDNN_AOT_STORE_ERROR &&
                  static_cast<int>(Code::kNotAStore) == CUDNN_AOT_NOT_A_STORE_ERROR &&
                  static_cast<int>(Code::kUsage) == CUDNN_AOT_USAGE_ERROR &&
                  static_cast<int>(Code::kPin) == CUDNN_AOT_PIN_ERROR,
              "one number for each code");
static_assert(static_cast<int>(Operand::Kind::kScalar) == CUDNN_AOT_SCALAR &&
                  static_cast<int>(Operand::Kind::kOutput) == CUDNN_AOT_OUTPUT,
              "one number for each kind of operand");

struct cudnn_aot_error {
  ErrorValue value;
};
struct cudnn_aot_store {
  Store store;
};
struct cudnn_aot_plan {
  std::unique_ptr<StoredPlan> plan;
};

namespace {

const ErrorValue kSuccess{Code::kSuccess, "", "", cudnn_aot::Refusal::kNoOperand};

// Handed out where there is no memory for an error; never freed.
cudnn_aot_error* OutOfMemory() {
  static cudnn_aot_error error{{Code::kInternal, "out of memory"}};
  return &error;
}

template <typename Body>
cudnn_aot_error* Guarded(Body body) noexcept {
  try {
    body();
    return nullptr;
  } catch (...) {
    try {
      return new cudnn_aot_error{cudnn_aot::ErrorOf(std::current_exception())};
    } catch (const std::bad_alloc&) {
      return OutOfMemory();
    }
  }
}

const ErrorValue& ValueOf(const cudnn_aot_error* error) {
  return error == nullptr ? kSuccess : error->value;
}

bool IsSet(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

std::string TextOf(const char* text) { return text == nullptr ? "" : text; }

// Signatures are checked by the Python runtime alone. Where they are required, what is opened here
// has to be pinned, which says more: a store that nobody vouches for must not be opened for want of
// a check.
void NeedNoSignature(const cudnn_aot::Opening& opening) {
  if (!opening.digests.empty() || IsSet("CUDNN_AOT_PIN") || !IsSet("CUDNN_AOT_TRUST")) return;
  throw cudnn_aot::StoreFailure(Code::kPin,
                                "CUDNN_AOT_TRUST is set, and this library checks no signature: pin "
                                "the root digest, which `cudnn-aot verify --trust` prints, with "
                                "CUDNN_AOT_PIN, or unset it");
}

const cudnn_aot_symbols kNoSymbols{0, nullptr, nullptr};

const cudnn_aot_symbols& SymbolsOf(const cudnn_aot_symbols* symbols) {
  return symbols == nullptr ? kNoSymbols : *symbols;
}

template <typename T>
const T* At(const std::vector<T>& items, int32_t index) {
  return index < 0 || static_cast<size_t>(index) >= items.size() ? nullptr : &items[index];
}

DLDataType Public(cudnn_aot::DLDataType dtype) { return {dtype.code, dtype.bits, dtype.lanes}; }

}  // namespace

// CUDNN_AOT_VERSION is that of the Python package.
const char* cudnn_aot_version() { return CUDNN_AOT_VERSION; }

const char* cudnn_aot_code_name(cudnn_aot_code code) {
  if (code == CUDNN_AOT_SUCCESS) return "";
  const char* name = cudnn_aot::ClassOf(static_cast<Code>(code));
  return name == nullptr ? "InternalError" : name;
}

cudnn_aot_code cudnn_aot_error_code(const cudnn_aot_error* error) {
  return static_cast<cudnn_aot_code>(ValueOf(error).code);
}

const char* cudnn_aot_error_message(const cudnn_aot_error* error) {
  return ValueOf(error).message.c_str();
}

const char* cudnn_aot_error_rule(const cudnn_aot_error* error) {
  return ValueOf(error).rule.c_str();
}

int64_t cudnn_aot_error_operand(const cudnn_aot_error* error) { return ValueOf(error).operand; }

void cudnn_aot_error_free(cudnn_aot_error* error) {
  if (error != OutOfMemory()) delete error;
}

cudnn_aot_error* cudnn_aot_open(const char* path, const char* target, cudnn_aot_store** out) {
  bool is_given = path != nullptr && *path != '\0';
  return cudnn_aot_open_layers(is_given ? 1 : 0, &path, nullptr, target, out);
}

cudnn_aot_error* cudnn_aot_open_layers(int32_t num_layers, const char* const* paths,
                                       const char* const* digests, const char* target,
                                       cudnn_aot_store** out) {
  return Guarded([&] {
    cudnn_aot::Opening opening;
    opening.target = TextOf(target);
    for (int32_t i = 0; i < num_layers; ++i) opening.layers.push_back(TextOf(paths[i]));
    if (digests != nullptr) {
      if (num_layers <= 0) {
        throw cudnn_aot::StoreFailure(Code::kUsage,
                                      "bad digest: got some for no layer, want one of each layer");
      }
      for (int32_t i = 0; i < num_layers; ++i) opening.digests.push_back(TextOf(digests[i]));
    }
    NeedNoSignature(opening);
    *out = new cudnn_aot_store{Store(opening)};
  });
}

cudnn_aot_error* cudnn_aot_store_digest(const cudnn_aot_store* store, int32_t layer, char* out) {
  return Guarded([&] {
    const auto& readers = store->store.layers().readers();
    if (layer < 0 || static_cast<size_t>(layer) >= readers.size()) {
      throw cudnn_aot::StoreFailure(Code::kUsage, "bad layer: got " + std::to_string(layer) +
                                                      ", want one of " +
                                                      std::to_string(readers.size()));
    }
    std::string digest = readers[layer].RootDigest();
    std::copy_n(digest.c_str(), digest.size() + 1, out);
  });
}

void cudnn_aot_store_free(cudnn_aot_store* store) { delete store; }

cudnn_aot_error* cudnn_aot_store_names(const cudnn_aot_store* store,
                                       void (*each)(void* context, const char* target,
                                                    const char* name),
                                       void* context) {
  return Guarded([&] {
    for (const auto& [target, name] : store->store.layers().Names()) {
      each(context, target.c_str(), name.c_str());
    }
  });
}

cudnn_aot_error* cudnn_aot_store_plan(const cudnn_aot_store* store, const char* name,
                                      const char* target, const char* provider,
                                      cudnn_aot_plan** out) {
  return Guarded([&] {
    *out = new cudnn_aot_plan{store->store.Load(TextOf(name), TextOf(target), TextOf(provider))};
  });
}

void cudnn_aot_plan_free(cudnn_aot_plan* plan) { delete plan; }

cudnn_aot_plan_info cudnn_aot_plan_get_info(const cudnn_aot_plan* plan) {
  const StoredPlan& stored = *plan->plan;
  const auto& table = stored.executor->table();
  return {stored.record.name.c_str(),
          stored.record.graph_key.c_str(),
          stored.record.target.c_str(),
          stored.record.engine.c_str(),
          table.cuda ? kDLCUDA : kDLCPU,
          static_cast<int32_t>(table.operands.size()),
          static_cast<int32_t>(table.symbols.size())};
}

cudnn_aot_operand cudnn_aot_plan_operand(const cudnn_aot_plan* plan, int32_t index) {
  const Operand* found = At(plan->plan->executor->table().operands, index);
  if (found == nullptr) return {};
  return {found->uid,
          found->name.c_str(),
          static_cast<cudnn_aot_operand_kind>(found->kind),
          Public(found->dtype->dl),
          found->rank,
          found->optional || found->has_default};
}

cudnn_aot_symbol cudnn_aot_plan_symbol(const cudnn_aot_plan* plan, int32_t index) {
  const Symbol* found = At(plan->plan->executor->table().symbols, index);
  if (found == nullptr) return {};
  return {found->name.c_str(), found->min, found->max, found->multiple_of, found->hint};
}

cudnn_aot_error* cudnn_aot_plan_uid(const cudnn_aot_plan* plan, const char* name, int64_t* out) {
  return Guarded([&] {
    const StoredPlan& stored = *plan->plan;
    const auto& uids = stored.record.uids;
    auto found = uids.find(TextOf(name));
    const auto& table = stored.executor->table();
    *out = found != uids.end() ? found->second
                               : table.operands[cudnn_aot::FindNamed(table, TextOf(name))].uid;
  });
}

cudnn_aot_error* cudnn_aot_plan_layout(const cudnn_aot_plan* plan, int64_t uid,
                                       const cudnn_aot_symbols* symbols, int64_t* dim,
                                       int64_t* stride) {
  return Guarded([&] {
    const cudnn_aot_symbols& given = SymbolsOf(symbols);
    plan->plan->executor->DeclaredLayout(uid, given.count, given.names, given.values, dim, stride);
  });
}

cudnn_aot_error* cudnn_aot_plan_workspace_bytes(const cudnn_aot_plan* plan,
                                                const cudnn_aot_symbols* symbols, int64_t* out) {
  return Guarded([&] {
    const cudnn_aot_symbols& given = SymbolsOf(symbols);
    *out = plan->plan->executor->WorkspaceBytes(given.count, given.names, given.values);
  });
}

cudnn_aot_error* cudnn_aot_plan_prepare(cudnn_aot_plan* plan, int32_t device) {
  return Guarded([&] { plan->plan->executor->Prepare(device); });
}

cudnn_aot_error* cudnn_aot_plan_execute(cudnn_aot_plan* plan, int32_t num_tensors,
                                        const int64_t* uids, const DLTensor* const* tensors,
                                        void* workspace, int64_t workspace_bytes, void* stream,
                                        const cudnn_aot_symbols* symbols) {
  return Guarded([&] {
    const cudnn_aot_symbols& given = SymbolsOf(symbols);
    TensorCall call;
    call.num_tensors = num_tensors;
    call.uids = uids;
    call.tensors = reinterpret_cast<const cudnn_aot::DLTensor* const*>(tensors);
    call.workspace = workspace;
    call.workspace_bytes = workspace_bytes;
    call.stream = stream;
    call.num_symbols = given.count;
    call.symbols = given.names;
    call.values = given.values;
    plan->plan->executor->Execute(call);
  });
}
