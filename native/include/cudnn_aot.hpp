// C++17 over the C interface of cudnn_aot.h: handles that free themselves, and errors that are
// values still; nothing here throws of its own. See docs/cpp.md.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cudnn_aot.h"

namespace cudnn_aot {

// What a function returns: true in a condition if it failed.
class [[nodiscard]] Error {
 public:
  Error() = default;
  Error(cudnn_aot_error* error) : error_(error) {}  // NOLINT: takes over what C returns

  explicit operator bool() const { return error_ != nullptr; }
  cudnn_aot_code code() const { return cudnn_aot_error_code(error_.get()); }
  const char* name() const { return cudnn_aot_code_name(code()); }  // "RefusedError"
  const char* message() const { return cudnn_aot_error_message(error_.get()); }
  const char* rule() const { return cudnn_aot_error_rule(error_.get()); }
  int64_t operand() const { return cudnn_aot_error_operand(error_.get()); }

 private:
  struct Free {
    void operator()(cudnn_aot_error* error) const { cudnn_aot_error_free(error); }
  };
  std::unique_ptr<cudnn_aot_error, Free> error_;
};

// Values of symbols, by name; the names must outlive it.
class Symbols {
 public:
  Symbols() = default;
  Symbols(std::initializer_list<std::pair<const char*, int64_t>> values) {
    for (const auto& [name, value] : values) Set(name, value);
  }
  void Set(const char* name, int64_t value) {
    names_.push_back(name);
    values_.push_back(value);
  }
  cudnn_aot_symbols get() const {
    return {static_cast<int32_t>(names_.size()), names_.data(), values_.data()};
  }

 private:
  std::vector<const char*> names_;
  std::vector<int64_t> values_;
};

// What a call binds, by uid; the tensors must outlive the call.
class Bindings {
 public:
  void Bind(int64_t uid, const DLTensor* tensor) {
    uids_.push_back(uid);
    tensors_.push_back(tensor);
  }
  int32_t size() const { return static_cast<int32_t>(uids_.size()); }
  const int64_t* uids() const { return uids_.data(); }
  const DLTensor* const* tensors() const { return tensors_.data(); }

 private:
  std::vector<int64_t> uids_;
  std::vector<const DLTensor*> tensors_;
};

struct Workspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

class Plan {
 public:
  cudnn_aot_plan_info info() const { return cudnn_aot_plan_get_info(get()); }
  std::vector<cudnn_aot_operand> operands() const {
    std::vector<cudnn_aot_operand> out;
    int32_t count = info().num_operands;
    for (int32_t i = 0; i < count; ++i) out.push_back(cudnn_aot_plan_operand(get(), i));
    return out;
  }
  std::vector<cudnn_aot_symbol> symbols() const {
    std::vector<cudnn_aot_symbol> out;
    int32_t count = info().num_symbols;
    for (int32_t i = 0; i < count; ++i) out.push_back(cudnn_aot_plan_symbol(get(), i));
    return out;
  }
  Error Uid(const char* name, int64_t* out) const { return cudnn_aot_plan_uid(get(), name, out); }
  Error Layout(const cudnn_aot_operand& operand, const Symbols& symbols, std::vector<int64_t>* dim,
               std::vector<int64_t>* stride) const {
    dim->resize(operand.rank);
    stride->resize(operand.rank);
    cudnn_aot_symbols values = symbols.get();
    return cudnn_aot_plan_layout(get(), operand.uid, &values, dim->data(), stride->data());
  }
  Error WorkspaceBytes(const Symbols& symbols, int64_t* out) const {
    cudnn_aot_symbols values = symbols.get();
    return cudnn_aot_plan_workspace_bytes(get(), &values, out);
  }
  Error Prepare(int32_t device = -1) { return cudnn_aot_plan_prepare(get(), device); }
  Error Execute(const Bindings& bindings, Workspace workspace = {}, void* stream = nullptr,
                const Symbols& symbols = {}) {
    cudnn_aot_symbols values = symbols.get();
    return cudnn_aot_plan_execute(get(), bindings.size(), bindings.uids(), bindings.tensors(),
                                  workspace.data, workspace.bytes, stream, &values);
  }
  cudnn_aot_plan* get() const { return plan_.get(); }

 private:
  friend class Store;
  struct Free {
    void operator()(cudnn_aot_plan* plan) const { cudnn_aot_plan_free(plan); }
  };
  std::unique_ptr<cudnn_aot_plan, Free> plan_;
};

class Store {
 public:
  // Null for the store at CUDNN_AOT_STORE, and for any target.
  static Error Open(const char* path, const char* target, Store* out) {
    cudnn_aot_store* opened = nullptr;
    Error error = cudnn_aot_open(path, target, &opened);
    out->store_.reset(opened);
    return error;
  }
  // The first layer before the others; `digests` are their root digests, or none.
  static Error Open(const std::vector<std::string>& layers, const std::vector<std::string>& digests,
                    const char* target, Store* out) {
    std::vector<const char*> paths, pins;
    for (const std::string& layer : layers) paths.push_back(layer.c_str());
    for (const std::string& digest : digests) pins.push_back(digest.c_str());
    if (pins.size() != paths.size() && !pins.empty()) pins.assign(paths.size() + 1, "");  // refused
    cudnn_aot_store* opened = nullptr;
    Error error = cudnn_aot_open_layers(static_cast<int32_t>(paths.size()), paths.data(),
                                        pins.empty() ? nullptr : pins.data(), target, &opened);
    out->store_.reset(opened);
    return error;
  }
  Error Digest(int32_t layer, std::string* out) const {  // its root digest
    out->resize(64);
    return cudnn_aot_store_digest(get(), layer, out->data());
  }
  Error Names(std::vector<std::pair<std::string, std::string>>* out) const {  // target, name
    auto add = [](void* names, const char* target, const char* name) {
      static_cast<decltype(out)>(names)->emplace_back(target, name);
    };
    return cudnn_aot_store_names(get(), add, out);
  }
  Error Load(const char* name, Plan* out, const char* target = nullptr,
             const char* provider = nullptr) const {
    cudnn_aot_plan* loaded = nullptr;
    Error error = cudnn_aot_store_plan(get(), name, target, provider, &loaded);
    out->plan_.reset(loaded);
    return error;
  }
  cudnn_aot_store* get() const { return store_.get(); }

 private:
  struct Free {
    void operator()(cudnn_aot_store* store) const { cudnn_aot_store_free(store); }
  };
  std::unique_ptr<cudnn_aot_store, Free> store_;
};

}  // namespace cudnn_aot
