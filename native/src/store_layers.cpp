#include "store_layers.h"

#include <algorithm>
#include <set>

#include "text.h"

namespace cudnn_aot {
namespace {

std::string Joined(const std::vector<std::string>& paths) {
  std::vector<std::string> shown;
  for (const std::string& path : paths) shown.push_back(TidyPath(path));
  return Join(shown, ":");
}

}  // namespace

StoreLayers::StoreLayers(const std::vector<std::string>& paths,
                         const std::vector<std::string>& digests, Note note)
    : path_(Joined(paths)), note_(std::move(note)) {
  for (size_t i = 0; i < paths.size(); ++i) {
    readers_.emplace_back(paths[i], digests.empty() ? "" : digests[i], path_);
  }
}

bool StoreLayers::MayFallThrough(const StoreFailure& failure) {
  return failure.code == Code::kDamaged || failure.code == Code::kStore ||
         failure.code == Code::kNotInStore;
}

// That a layer has not what another has is no fault.
void StoreLayers::Passed(const std::vector<StoreFailure>& failures) const {
  for (const StoreFailure& failure : failures) {
    if (failure.code != Code::kNotInStore && note_) note_(failure);
  }
}

void StoreLayers::Rethrow(const std::vector<StoreFailure>& failures) {
  auto fault = std::find_if(failures.begin(), failures.end(), [](const StoreFailure& failure) {
    return failure.code != Code::kNotInStore;
  });
  throw fault == failures.end() ? failures.front() : *fault;
}

template <typename Item>
std::vector<Item> StoreLayers::Union(
    const std::function<std::vector<Item>(const StoreReader&)>& list) const {
  if (readers_.size() == 1) return list(readers_.front());
  std::set<Item> out;
  std::vector<StoreFailure> failures;
  for (const StoreReader& reader : readers_) {
    try {
      for (Item& item : list(reader)) out.insert(std::move(item));
    } catch (const StoreFailure& failure) {
      if (!MayFallThrough(failure)) throw;
      failures.push_back(failure);
    }
  }
  if (failures.size() == readers_.size()) Rethrow(failures);
  Passed(failures);
  return {out.begin(), out.end()};
}

std::string StoreLayers::Blob(const std::string& digest) const {
  return FirstGood([&](const StoreReader& reader) { return reader.Blob(digest); });
}

std::vector<std::pair<std::string, std::string>> StoreLayers::Names() const {
  return Union<std::pair<std::string, std::string>>(
      [](const StoreReader& reader) { return reader.Names(); });
}

std::vector<std::string> StoreLayers::Targets() const {
  return Union<std::string>([](const StoreReader& reader) { return reader.Targets(); });
}

std::vector<std::string> StoreLayers::Holders(const std::string& name) const {
  return Union<std::string>([&](const StoreReader& reader) { return reader.Holders(name); });
}

bool StoreLayers::HasTarget(const std::string& target) const {
  if (readers_.size() == 1) return readers_.front().HasTarget(target);
  std::vector<std::string> held = Targets();
  return std::binary_search(held.begin(), held.end(), target);
}

bool StoreLayers::Holds(const std::string& target, const std::string& name) const {
  return std::any_of(readers_.begin(), readers_.end(),
                     [&](const StoreReader& reader) { return reader.Holds(target, name); });
}

}  // namespace cudnn_aot
