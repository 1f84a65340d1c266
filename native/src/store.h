// A store opened for serving, and its plans. Touches no GPU until a plan is prepared or executed.
//
// The same rules and the same messages as `runtime.store` has, which reads the store for Python.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executor.h"
#include "store_reader.h"

namespace cudnn_aot {

struct StoredPlan {
  std::string name;  // that it was asked for by, or its graph key
  std::string graph_key;
  std::string target;
  std::string engine;
  std::map<std::string, int64_t> uids;  // by the names of operands
  std::unique_ptr<Executor> executor;
};

// Immutable: any number of threads may load plans at once.
class Store {
 public:
  // An empty `path` stands for CUDNN_AOT_STORE, an empty `target` for any. Throws StoreFailure.
  Store(const std::string& path, const std::string& target);

  // (target, name) of every named graph, sorted.
  std::vector<std::pair<std::string, std::string>> Names() const { return reader_.Names(); }

  // Loads the best plan of a graph, by its name or key: checks this host, verifies and loads its
  // kernels. Empty strings stand for the store's target and for any provider. Throws StoreFailure,
  // RequirementFailure and LaunchFailure.
  std::unique_ptr<StoredPlan> Load(const std::string& name, const std::string& target,
                                   const std::string& provider) const;

 private:
  struct Found {
    std::map<std::string, int64_t> uids;
    Value pointer;
  };

  Found Find(const std::string& name, const std::string& target) const;
  Value Record(const std::string& name, const Value& pointer, const std::string& digest) const;
  void NeedTarget(const std::string& target) const;
  std::string OnlyTarget(const std::string& name) const;
  [[noreturn]] void Absent(const std::string& name, const std::string& target) const;

  StoreReader reader_;
  std::string target_;
};

}  // namespace cudnn_aot
