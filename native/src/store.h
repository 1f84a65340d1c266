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
#include "store_reader.h"

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

// Immutable: any number of threads may load plans at once. A graph that was found is held until the
// store and every record of it are gone.
class Store {
 public:
  // An empty `path` stands for CUDNN_AOT_STORE, an empty `target` for any. Throws StoreFailure.
  Store(const std::string& path, const std::string& target);

  const StoreReader& reader() const { return reader_; }

  // Throws StoreFailure unless there is a plan or a name for the target.
  void NeedTarget(const std::string& target) const;

  Found Find(const std::string& name, const std::string& target) const;

  // Reads the record of the best plan of a graph, of any provider if that is empty, and checks that
  // the host runs it unless null. Nothing is loaded. Throws StoreFailure and RequirementFailure.
  PlanRecord Read(const Request& request, const std::string& provider, const Host* host) const;

  // The same for many, on several threads, and with `kernels` their plans, of records without
  // blobs; libtvm_ffi is loaded by then. Answers are in the order of the requests.
  std::vector<Answer> Load(const std::vector<Request>& requests, const std::string& provider,
                           const Host* host, bool kernels) const;

  // Loads one plan for a program without Python, and libtvm_ffi. Throws StoreFailure,
  // RequirementFailure and LaunchFailure.
  std::unique_ptr<StoredPlan> Load(const std::string& name, const std::string& target,
                                   const std::string& provider) const;

 private:
  std::string OnlyTarget(const std::string& name) const;
  [[noreturn]] void Absent(const std::string& name, const std::string& target) const;

  StoreReader reader_;
  std::shared_ptr<HeldGraphs> held_;
  std::string target_;
};

}  // namespace cudnn_aot
