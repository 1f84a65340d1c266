#include "store.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "error.h"
#include "json.h"
#include "libraries.h"
#include "requirements.h"
#include "text.h"

namespace cudnn_aot {
namespace {

constexpr int64_t kRecordFormat = 1;
constexpr char kVariable[] = "CUDNN_AOT_STORE";

[[noreturn]] void Fail(Code code, const std::string& message) { throw StoreFailure(code, message); }

std::string PathOf(const std::string& path) {
  if (!path.empty()) return path;
  const char* value = std::getenv(kVariable);
  if (value != nullptr && *value != '\0') return value;
  Fail(Code::kUsage, std::string("no store: pass a path or set ") + kVariable);
}

// The texts of a list, none where there is no list.
std::vector<std::string> Texts(const Value* list) {
  std::vector<std::string> out;
  if (list == nullptr) return out;
  for (const Value& item : list->items) out.push_back(item.string);
  return out;
}

std::string TextOf(const Value& document, const char* field) {
  const Value* found = document.Find(field);
  return found == nullptr ? "" : found->string;
}

// What is stored for a graph: records in order and, without any, the reasons.
struct Held {
  std::vector<std::string> records;
  std::vector<std::string> reasons;
  bool is_declined = false;

  explicit Held(const Value& document)
      : records(Texts(document.Find("records"))), reasons(Texts(document.Find("reasons"))) {
    is_declined = records.empty() || TextOf(document, "status") == "declined";
  }
};

// What one provider has; a pointer of before there were several is native.
Held PartOf(const std::string& provider, const Value& pointer, const std::string& missing) {
  const Value* providers = pointer.Find("providers");
  if (providers == nullptr || providers->kind != Value::Kind::kObject) {
    if (provider == "native") return Held(pointer);
    Fail(Code::kNotInStore, missing + "native");
  }
  if (const Value* part = providers->Find(provider)) return Held(*part);
  std::vector<std::string> names = providers->keys;
  std::sort(names.begin(), names.end());
  Fail(Code::kNotInStore, missing + Join(names, ", "));
}

std::map<std::string, int64_t> UidsOf(const Value& document) {
  std::map<std::string, int64_t> out;
  if (const Value* uids = document.Find("uids")) {
    for (size_t i = 0; i < uids->keys.size(); ++i) out[uids->keys[i]] = uids->items[i].integer;
  }
  return out;
}

std::vector<std::shared_ptr<const Kernel>> LoadKernels(const StoreReader& reader,
                                                       const Reader& kernels) {
  std::vector<std::shared_ptr<const Kernel>> out;
  for (const Reader& kernel : kernels.Items()) {
    const std::string& digest = kernel.Field("blob").String();
    out.push_back(LoadKernel(reader.Blob(digest), digest, kernel.Field("symbol").String()));
  }
  return out;
}

}  // namespace

Store::Store(const std::string& path, const std::string& target)
    : reader_(PathOf(path)), target_(target) {
  if (!target.empty()) NeedTarget(target);
}

std::unique_ptr<StoredPlan> Store::Load(const std::string& name, const std::string& target,
                                        const std::string& provider) const {
  Found found = Find(name, target);
  auto plan = std::make_unique<StoredPlan>();
  plan->name = name;
  plan->target = TextOf(found.pointer, "target");
  plan->graph_key = TextOf(found.pointer, "graph_key");
  Held held(found.pointer);
  if (!provider.empty()) {
    held = PartOf(provider, found.pointer,
                  "store " + Quoted(reader_.path()) + " holds no plan of " + Quoted(provider) +
                      " for " + Quoted(name) + "; it has those of: ");
  }
  if (held.is_declined) {
    std::string reasons = Join(held.reasons, "; ");
    Fail(Code::kGraphNotSupported, "graph " + Quoted(name) + " is declined for " + plan->target +
                                       ": " +
                                       (reasons.empty() ? "no reason was recorded" : reasons));
  }
  Value document = Record(name, found.pointer, held.records[0]);
  std::string what = "plan " + Quoted(name) + " for " + plan->target;
  Reader record(document, "");
  for (const char* field :
       {"graph_key", "target", "engine", "knobs", "table", "kernels", "requirements"}) {
    if (document.Find(field) == nullptr) {
      Fail(Code::kStore, "plan record of " + Quoted(name) + " lacks a field: " + Quoted(field));
    }
  }
  try {
    plan->engine = record.Field("engine").Field("name").String();
    Requirements needed = ParseRequirements(*document.Find("requirements"));
    CheckHost(needed, what, ThisHost());
    const Value* blobs = document.Find("blobs");
    if (blobs != nullptr && !blobs->items.empty()) {
      throw RequirementFailure(what + " cannot run here: it is a plan of cuDNN " + needed.cudnn +
                               ", which Python alone executes: want one of provider 'native'");
    }
    LoadTvmFfi();
    auto kernels = LoadKernels(reader_, record.Field("kernels"));
    Table table;
    try {
      table = ParseTable(*document.Find("table"));
      plan->uids = std::move(found.uids);
      if (plan->uids.empty()) {
        for (const Operand& operand : table.operands) plan->uids[operand.name] = operand.uid;
      }
      plan->executor = std::make_unique<Executor>(
          Plan(std::move(table), std::move(kernels), {}), [what, needed](int device) {
            LoadCudart();
            if (device == Devices::kCurrent) return;
            CheckDevice(needed, what, device, cuda::DeviceAttributes(device));
          });
    } catch (const TableError& error) {
      Fail(Code::kStore, "launch table of plan " + Quoted(name) + ": " + error.what());
    }
  } catch (const TableError& error) {
    Fail(Code::kStore, "plan record of " + Quoted(name) + ": " + error.what());
  }
  return plan;
}

Store::Found Store::Find(const std::string& name, const std::string& target) const {
  std::string chosen = target.empty() ? target_ : target;
  if (!chosen.empty()) NeedTarget(chosen);
  std::string holder = chosen.empty() ? OnlyTarget(name) : chosen;
  if (IsDigest(name)) return {{}, reader_.Pointer(holder, name)};
  Value entry;
  try {
    entry = reader_.Name(holder, name);
  } catch (const StoreFailure& error) {
    if (error.code == Code::kNotInStore) Absent(name, holder);
    throw;
  }
  const Value* key = entry.Find("graph_key");
  if (key == nullptr) {
    Fail(Code::kDamaged, "name " + Quoted(name) + " for " + holder + " states no graph key");
  }
  return {UidsOf(entry), reader_.Pointer(holder, key->string)};
}

// The record of the best plan, which is that of the pointer's graph and target.
Value Store::Record(const std::string& name, const Value& pointer,
                    const std::string& digest) const {
  Value out;
  try {
    out = ParseJson(reader_.Blob(digest));
  } catch (const JsonError&) {
    Fail(Code::kDamaged, "plan record " + digest + " of " + Quoted(name) + " is no JSON");
  }
  const Value* format = out.Find("format");
  if (format == nullptr || format->kind != Value::Kind::kInt || format->integer != kRecordFormat) {
    std::string shown = "None";
    if (format != nullptr && format->kind != Value::Kind::kNull) {
      bool is_text = format->kind == Value::Kind::kString;
      shown = is_text ? Quoted(format->string) : CanonicalJson(*format);
    }
    Fail(Code::kStore, "plan record of " + Quoted(name) + " has format " + shown +
                           ", this version of cudnn-aot reads format " +
                           std::to_string(kRecordFormat));
  }
  if (TextOf(out, "graph_key") != TextOf(pointer, "graph_key") ||
      TextOf(out, "target") != TextOf(pointer, "target")) {
    Fail(Code::kDamaged,
         "plan record " + digest + " belongs to another graph than " + Quoted(name));
  }
  return out;
}

void Store::NeedTarget(const std::string& target) const {
  if (reader_.HasTarget(target)) return;
  std::vector<std::string> held = reader_.Targets();
  Fail(Code::kNotInStore,
       "store " + Quoted(reader_.path()) + " holds nothing for target " + Quoted(target) +
           "; it has: " + (held.empty() ? "no target at all" : Join(held, ", ")));
}

std::string Store::OnlyTarget(const std::string& name) const {
  std::vector<std::string> holders = reader_.Holders(name);
  if (holders.empty()) Absent(name, "");
  if (holders.size() == 1) return holders[0];
  Fail(Code::kUsage, Quoted(name) + " is stored for " + Join(holders, ", ") +
                         ": choose one with plan(" + Quoted(name) + ", target=...)");
}

void Store::Absent(const std::string& name, const std::string& target) const {
  std::string message = "no graph named " + Quoted(name);
  if (!target.empty()) message += " for " + target;
  message += " in store " + Quoted(reader_.path());
  std::set<std::string> names;
  std::vector<std::string> elsewhere;
  for (const auto& [holder, entry] : reader_.Names()) {
    if (entry == name && !target.empty()) elsewhere.push_back(holder);
    if (target.empty() || holder == target) names.insert(entry);
  }
  if (!elsewhere.empty()) {
    Fail(Code::kNotInStore, message + "; it is there for " + Join(elsewhere, ", "));
  }
  std::vector<std::string> nearest = Nearest(name, {names.begin(), names.end()});
  if (nearest.empty()) {
    Fail(Code::kNotInStore, message + "; it holds " + std::to_string(names.size()) + " names");
  }
  for (std::string& near : nearest) near = Quoted(near);
  Fail(Code::kNotInStore, message + "; the nearest are " + Join(nearest, ", "));
}

}  // namespace cudnn_aot
