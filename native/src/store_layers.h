// The stores that plans are looked for in, the first before the others, as `cache.layers` has them.
//
// Names and pointers are those of the first layer that has them whole, blobs those of any. A layer
// whose entry is damaged or unreadable is passed over where another has a good one, and that is
// noted; where none has, the fault of the first that has one is thrown.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "store_reader.h"

namespace cudnn_aot {

class StoreLayers {
 public:
  // Told of each fault that another layer made good; from any thread, and throws nothing.
  using Note = std::function<void(const StoreFailure&)>;

  // `paths` are not empty; `digests` are empty or the root digest of each. Throws StoreFailure of
  // the first that is no store or has another digest.
  StoreLayers(const std::vector<std::string>& paths, const std::vector<std::string>& digests,
              Note note);

  const std::vector<StoreReader>& readers() const { return readers_; }
  const std::string& path() const { return path_; }  // of all, ':' between them

  std::string Blob(const std::string& digest) const;

  // What is in any layer, each once, sorted.
  std::vector<std::pair<std::string, std::string>> Names() const;
  std::vector<std::string> Targets() const;
  std::vector<std::string> Holders(const std::string& name) const;
  bool HasTarget(const std::string& target) const;
  bool Holds(const std::string& target, const std::string& name) const;

  // What `read(layer)` gives of the first layer of which it throws no StoreFailure that another
  // layer may make good.
  template <typename Read>
  auto FirstGood(Read read) const {
    if (readers_.size() == 1) return read(readers_.front());
    std::vector<StoreFailure> failures;
    for (const StoreReader& reader : readers_) {
      try {
        auto out = read(reader);
        Passed(failures);
        return out;
      } catch (const StoreFailure& failure) {
        if (!MayFallThrough(failure)) throw;
        failures.push_back(failure);
      }
    }
    Rethrow(failures);
  }

 private:
  template <typename Item>
  std::vector<Item> Union(const std::function<std::vector<Item>(const StoreReader&)>& list) const;
  static bool MayFallThrough(const StoreFailure& failure);
  void Passed(const std::vector<StoreFailure>& failures) const;
  [[noreturn]] static void Rethrow(const std::vector<StoreFailure>& failures);

  std::string path_;
  std::vector<StoreReader> readers_;
  Note note_;
};

}  // namespace cudnn_aot
