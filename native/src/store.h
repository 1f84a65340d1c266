// A store opened for serving, and its plans. Touches no GPU until a plan is prepared or executed.
//
// Everything that serves plans reads them here, in Python and without it.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executor.h"
#include "held.h"
#include "plan_record.h"
#include "requirements.h"
#include "store_layers.h"

namespace cudnn_aot {

// What a plan is asked for by.
struct Request {
  std::string name;    // or key of a graph
  std::string target;  // empty: the store's, else the only one that holds the name
  std::string label;   // the name of the plan; empty: as it was asked for
};

// What lies under a name or a key.
struct Found {
  std::map<std::string, int64_t> uids;  // of the names of its operands; of a key none
  std::string target;
  std::string graph_key;
  Value pointer;
};

// One of many: an error stands for itself alone.
struct Answer {
  PlanRecord record;
  std::unique_ptr<Plan> plan;  // null if only the record was read
  std::exception_ptr error;
};

struct StoredPlan {
  PlanRecord record;
  std::unique_ptr<Executor> executor;
};

// What is opened: the first layer before the others.
struct Opening {
  std::vector<std::string> layers;   // paths; none: those of CUDNN_AOT_STORE
  std::string target;                // empty: any
  std::vector<std::string> digests;  // the root digest of each; none: those of CUDNN_AOT_PIN
};

// What is held of each layer.
using HeldLayers = std::vector<std::unique_ptr<HeldGraphs>>;

// Immutable: any number of threads may load plans at once. A graph that was found is held until the
// store and every record of it are gone.
class Store {
 public:
  // Throws StoreFailure.
  explicit Store(const Opening& opening, StoreLayers::Note note = {});

  const StoreLayers& layers() const { return layers_; }

  // Throws StoreFailure unless there is a plan or a name for the target.
  void NeedTarget(const std::string& target) const;

  Found Find(const std::string& name, const std::string& target) const;

  // Reads the record of the best plan of each graph, of any provider if that is empty, and checks
  // that the host runs it unless null; on several threads. With `kernels` their plans are loaded,
  // of records without blobs; libtvm_ffi is by then. Answers are in the order of the requests.
  std::vector<Answer> Load(const std::vector<Request>& requests, const std::string& provider,
                           const Host* host, bool kernels) const;

  // Loads one plan for a program without Python, and libtvm_ffi. Throws StoreFailure,
  // RequirementFailure and LaunchFailure.
  std::unique_ptr<StoredPlan> Load(const std::string& name, const std::string& target,
                                   const std::string& provider) const;

 private:
  template <typename Use>
  auto FirstUsable(const std::string& name, const std::string& target, Use use) const;
  PlanRecord Read(const std::string& name, const Found& found, const std::string& provider,
                  const Host* host) const;
  std::string Part(const std::string& digest) const;
  // The target that holds a name; of several the one whose plan is for hosts as this one is.
  std::string OnlyTarget(const std::string& name) const;
  bool IsForThisHost(const std::string& name, const std::string& target) const;
  [[noreturn]] void Absent(const std::string& name, const std::string& target) const;

  StoreLayers layers_;
  std::shared_ptr<HeldLayers> held_;
  std::string target_;
};

}  // namespace cudnn_aot
