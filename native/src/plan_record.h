// A plan record: what a store holds of one plan, and how a plan is made of it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend.h"
#include "plan.h"
#include "requirements.h"
#include "table.h"
#include "value.h"

namespace cudnn_aot {

struct PlanRecord {
  struct KernelEntry {
    std::string blob;  // digest of its library
    std::string symbol;
  };

  std::string name;  // that it was asked for by, or its graph key
  std::string graph_key;
  std::string target;
  std::string engine;
  int64_t engine_id = 0;
  std::map<std::string, int64_t> uids;  // by the names of operands
  bool is_cuda = false;                 // else it is of the host
  Requirements requirements;
  std::vector<KernelEntry> kernels;
  std::vector<std::string> blobs;    // digests of cuDNN's plans
  Table table;                       // until a plan takes it
  std::string text;                  // the whole record, as JSON
  std::shared_ptr<const void> held;  // what keeps `prune` off it
  int64_t bytes = 0;                 // that were read for it so far
  int64_t ns = 0;                    // that loading took so far

  std::string What() const;  // "plan 'qkv' for h200", the subject of messages
};

// Reads a record that was parsed; `text` and what was read are the caller's to set. Without `uids`
// they are those of the launch table. Throws StoreFailure.
PlanRecord ParsePlanRecord(const std::string& name, std::map<std::string, int64_t> uids,
                           const Value& document);

// The bytes of a blob by its digest, checked.
using ReadBlob = std::function<std::string(const std::string& digest)>;

// Loads the kernels, and takes the table. `backends` has one plug-in for each blob. Throws
// StoreFailure and LaunchFailure, which name the plan.
std::unique_ptr<Plan> LoadPlan(PlanRecord* record, const ReadBlob& read,
                               std::vector<Backend> backends);

}  // namespace cudnn_aot
