#include "store.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <set>

#include "error.h"
#include "json.h"
#include "libraries.h"
#include "parallel.h"
#include "text.h"

namespace cudnn_aot {
namespace {

constexpr int64_t kRecordFormat = 1;
constexpr char kVariable[] = "CUDNN_AOT_STORE";
constexpr char kPinVariable[] = "CUDNN_AOT_PIN";

[[noreturn]] void Fail(Code code, const std::string& message) { throw StoreFailure(code, message); }

std::vector<std::string> PartsOf(const char* variable, const char* what) {
  std::vector<std::string> out;
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return out;
  std::string text = value;
  for (size_t at = 0; at <= text.size();) {
    size_t end = std::min(text.find(':', at), text.size());
    if (end == at) {
      Fail(Code::kUsage, std::string(variable) + ": got " + Quoted(text) + ", want " + what +
                             " with ':' between them and no empty one");
    }
    out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

std::vector<std::string> PathsOf(const Opening& opening) {
  std::vector<std::string> out = opening.layers;
  if (out.empty()) out = PartsOf(kVariable, "folders or packs");
  // An empty path is most likely a setting that is not there; it must not be the current folder.
  if (out.empty() || std::count(out.begin(), out.end(), "") != 0) {
    Fail(Code::kUsage, std::string("no store: pass a path or set ") + kVariable);
  }
  return out;
}

std::vector<std::string> DigestsOf(const Opening& opening, size_t layers) {
  std::string what = "digest";
  std::vector<std::string> out = opening.digests;
  if (out.empty()) {
    what = kPinVariable;
    out = PartsOf(kPinVariable, "root digests");
  }
  for (const std::string& digest : out) {
    if (!IsDigest(digest)) {
      Fail(Code::kUsage, "bad " + what + ": got " + Quoted(digest) + ", want 64 hex digits");
    }
  }
  if (!out.empty() && out.size() != layers) {
    Fail(Code::kUsage, "bad " + what + ": got " + std::to_string(out.size()) +
                           " root digests, want " + std::to_string(layers) +
                           ", one of each layer, so that none is read that is not pinned");
  }
  return out;
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

int64_t NowNs() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// The version and the graph that a record states are those that are wanted.
void CheckRecord(const Value& record, const std::string& name, const Found& found,
                 const std::string& digest) {
  const Value* format = record.Find("format");
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
  if (TextOf(record, "graph_key") != found.graph_key || TextOf(record, "target") != found.target) {
    Fail(Code::kDamaged,
         "plan record " + digest + " belongs to another graph than " + Quoted(name));
  }
}

}  // namespace

Store::Store(const Opening& opening, StoreLayers::Note note)
    : layers_(PathsOf(opening), DigestsOf(opening, PathsOf(opening).size()), std::move(note)),
      held_(std::make_shared<HeldLayers>()),
      target_(opening.target) {
  for (const StoreReader& reader : layers_.readers()) {
    held_->push_back(std::make_unique<HeldGraphs>(reader.path()));
  }
  if (!target_.empty()) NeedTarget(target_);
}

// What `use` makes of what lies under a name or a key: that of the first layer of which it, and all
// that it reads, is whole.
template <typename Use>
auto Store::FirstUsable(const std::string& name, const std::string& target, Use use) const {
  std::string holder = target.empty() ? target_ : target;
  bool is_chosen = !holder.empty();
  if (!is_chosen) holder = OnlyTarget(name);
  auto of_key = [&](Found found) {
    for (const auto& layer : *held_) {
      layer->Take(holder, found.graph_key);
    }
    return layers_.FirstGood([&](const StoreReader& reader) {
      found.pointer = reader.Pointer(holder, found.graph_key);
      return use(found);
    });
  };
  try {
    if (IsDigest(name)) return of_key({{}, holder, name, {}});
    return layers_.FirstGood([&](const StoreReader& reader) {
      Value entry;
      try {
        entry = reader.Name(holder, name);
      } catch (const StoreFailure& error) {
        if (error.code != Code::kNotInStore) throw;
        if (!layers_.Holds(holder, name)) Absent(name, holder);
        throw;
      }
      return of_key({UidsOf(entry), holder, TextOf(entry, "graph_key"), {}});
    });
  } catch (const StoreFailure& error) {
    // Only now, since looking for a target costs as much as reading a document.
    bool is_absent = error.code == Code::kNotInStore || error.code == Code::kUsage;
    if (is_chosen && is_absent) NeedTarget(holder);
    throw;
  }
}

Found Store::Find(const std::string& name, const std::string& target) const {
  return FirstUsable(name, target, [](const Found& found) { return found; });
}

// A blob that a document names.
std::string Store::Part(const std::string& digest) const {
  try {
    return layers_.Blob(digest);
  } catch (const StoreFailure& error) {
    if (error.code != Code::kNotInStore) throw;
    Fail(Code::kDamaged, error.what());
  }
}

PlanRecord Store::Read(const std::string& name, const Found& found, const std::string& provider,
                       const Host* host) const {
  Held held(found.pointer);
  if (!provider.empty()) {
    held = PartOf(provider, found.pointer,
                  "store " + Quoted(layers_.path()) + " holds no plan of " + Quoted(provider) +
                      " for " + Quoted(name) + "; it has those of: ");
  }
  if (held.is_declined) {
    std::string reasons = Join(held.reasons, "; ");
    if (reasons.empty()) reasons = "no reason was recorded";
    Fail(Code::kGraphNotSupported,
         "graph " + Quoted(name) + " is declined for " + found.target + ": " + reasons);
  }
  const std::string& digest = held.records[0];
  std::string text;
  Value document;
  try {
    text = Part(digest);
    document = ParseJson(text);
  } catch (const StoreFailure& error) {
    Fail(error.code, "plan " + Quoted(name) + " for " + found.target + ": " + error.what());
  } catch (const JsonError&) {
    Fail(Code::kDamaged, "plan record " + digest + " of " + Quoted(name) + " is no JSON");
  }
  CheckRecord(document, name, found, digest);
  PlanRecord out = ParsePlanRecord(name, found.uids, document);
  if (host != nullptr) CheckHost(out.requirements, out.What(), *host);
  out.held = held_;
  out.bytes = static_cast<int64_t>(text.size());
  out.text = std::move(text);
  return out;
}

std::vector<Answer> Store::Load(const std::vector<Request>& requests, const std::string& provider,
                                const Host* host, bool kernels) const {
  std::vector<Answer> out(requests.size());
  auto part = [this](const std::string& digest) { return Part(digest); };
  ForEachInParallel(requests.size(), [&](size_t i) {
    int64_t began = NowNs();
    const Request& request = requests[i];
    const std::string& label = request.label.empty() ? request.name : request.label;
    try {
      out[i] = FirstUsable(request.name, request.target, [&](const Found& found) {
        Answer answer;
        answer.record = Read(label, found, provider, host);
        if (kernels && answer.record.blobs.empty()) {
          answer.plan = LoadPlan(&answer.record, part, {});
        }
        return answer;
      });
    } catch (...) {
      out[i].error = std::current_exception();
    }
    out[i].record.ns = NowNs() - began;
  });
  return out;
}

std::unique_ptr<StoredPlan> Store::Load(const std::string& name, const std::string& target,
                                        const std::string& provider) const {
  auto out = std::make_unique<StoredPlan>();
  auto part = [this](const std::string& digest) { return Part(digest); };
  auto plan = FirstUsable(name, target, [&](const Found& found) {
    PlanRecord& record = out->record = Read(name, found, provider, &ThisHost());
    if (!record.blobs.empty()) {
      throw RequirementFailure(record.What() + " cannot run here: it is a plan of cuDNN " +
                               record.requirements.cudnn +
                               ", which Python alone executes: want one of provider 'native'");
    }
    LoadTvmFfi();
    return LoadPlan(&record, part, {});
  });
  const PlanRecord& record = out->record;
  auto hook = [what = record.What(), needed = record.requirements](int device) {
    LoadCudart();
    if (device == Devices::kCurrent) return;
    CheckDevice(needed, what, device, cuda::DeviceAttributes(device));
  };
  out->executor = std::make_unique<Executor>(std::move(*plan), std::move(hook));
  return out;
}

void Store::NeedTarget(const std::string& target) const {
  if (layers_.HasTarget(target)) return;
  std::vector<std::string> held = layers_.Targets();
  Fail(Code::kNotInStore,
       "store " + Quoted(layers_.path()) + " holds nothing for target " + Quoted(target) +
           "; it has: " + (held.empty() ? "no target at all" : Join(held, ", ")));
}

std::string Store::OnlyTarget(const std::string& name) const {
  std::vector<std::string> holders = layers_.Holders(name);
  if (holders.empty()) Absent(name, "");
  if (holders.size() == 1) return holders[0];
  std::vector<std::string> fitting;
  for (const std::string& holder : holders) {
    if (IsForThisHost(name, holder)) fitting.push_back(holder);
  }
  if (fitting.size() == 1) return fitting[0];
  Fail(Code::kUsage, Quoted(name) + " is stored for " + Join(holders, ", ") +
                         ": choose one with plan(" + Quoted(name) + ", target=...)");
}

bool Store::IsForThisHost(const std::string& name, const std::string& target) const {
  try {
    FirstUsable(name, target,
                [&](const Found& found) { return Read(name, found, "", &ThisHost()); });
  } catch (const RequirementFailure&) {
    return false;
  } catch (const std::exception&) {  // declined or damaged: who takes it is told
  }
  return true;
}

void Store::Absent(const std::string& name, const std::string& target) const {
  std::string message = "no graph named " + Quoted(name);
  if (!target.empty()) message += " for " + target;
  message += " in store " + Quoted(layers_.path());
  std::set<std::string> names;
  std::vector<std::string> elsewhere;
  for (const auto& [holder, entry] : layers_.Names()) {
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
