#include "plan_record.h"

#include <utility>

#include "error.h"
#include "kernel.h"
#include "text.h"

namespace cudnn_aot {

std::string PlanRecord::What() const { return "plan " + Quoted(name) + " for " + target; }

PlanRecord ParsePlanRecord(const std::string& name, std::map<std::string, int64_t> uids,
                           const Value& document) {
  PlanRecord out;
  out.name = name;
  out.uids = std::move(uids);
  try {
    Reader record(document, "");
    out.graph_key = record.Field("graph_key").String();
    out.target = record.Field("target").String();
    out.engine = record.Field("engine").Field("name").String();
    out.engine_id = record.Field("engine").Field("id").Int();
    record.Field("knobs").Members();
    for (const Reader& kernel : record.Field("kernels").Items()) {
      out.kernels.push_back({kernel.Field("blob").String(), kernel.Field("symbol").String()});
    }
    if (record.Has("blobs")) {
      for (const Reader& blob : record.Field("blobs").Items()) {
        out.blobs.push_back(blob.Field("blob").String());
      }
    }
    out.requirements = ParseRequirements(record.Field("requirements").value());
    record.Field("table");
  } catch (const TableError& error) {
    throw StoreFailure(Code::kStore, "plan record of " + Quoted(name) + ": " + error.what());
  }
  try {
    out.table = ParseTable(*document.Find("table"));
    NeedParts(out.table, out.kernels.size(), out.blobs.size());
  } catch (const TableError& error) {
    throw StoreFailure(Code::kStore, "launch table of plan " + Quoted(name) + ": " + error.what());
  }
  out.is_cuda = out.table.cuda;
  if (out.uids.empty()) {
    for (const Operand& operand : out.table.operands) out.uids[operand.name] = operand.uid;
  }
  return out;
}

std::unique_ptr<Plan> LoadPlan(PlanRecord* record, const ReadBlob& read,
                               std::vector<Backend> backends) {
  try {
    std::vector<std::shared_ptr<const Kernel>> kernels;
    for (const auto& [digest, symbol] : record->kernels) {
      std::string data = read(digest);
      kernels.push_back(LoadKernel(data, digest, symbol));
      record->bytes += static_cast<int64_t>(data.size());
    }
    return std::make_unique<Plan>(std::move(record->table), std::move(kernels),
                                  std::move(backends));
  } catch (const StoreFailure& error) {
    throw StoreFailure(error.code, record->What() + ": " + error.what());
  } catch (const LaunchFailure& error) {
    throw LaunchFailure(record->What() + ": " + error.what());
  } catch (const TableError& error) {
    throw StoreFailure(Code::kStore,
                       "launch table of plan " + Quoted(record->name) + ": " + error.what());
  }
}

}  // namespace cudnn_aot
