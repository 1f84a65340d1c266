// Reading the files of a store, as `cache.layout` lays them out and `cache.reader` reads them; the
// part that serving needs. Never locks, and keeps nothing.
//
// Every byte handed out was checked: a blob against the digest that names it, a document against
// its seal and the place it lies in. Throws StoreFailure: kDamaged for what fails, kNotInStore for
// what is not there, kStore for what the system does not let us read, kUsage for a name or digest
// that is none.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store_files.h"
#include "value.h"

namespace cudnn_aot {

bool IsDigest(const std::string& text);  // 64 hex digits, lower case

class StoreReader {
 public:
  // Throws StoreFailure (kNotAStore) unless the folder or the pack is a store of a format that we
  // read, and kDamaged where what says so is not what was written.
  explicit StoreReader(const std::string& path);

  const std::string& path() const { return path_; }

  std::string Blob(const std::string& digest) const;
  // What is stored for a graph and a target: plan records in order, or a decline.
  Value Pointer(const std::string& target, const std::string& graph_key) const;
  // The graph key and the uids behind a name.
  Value Name(const std::string& target, const std::string& name) const;

  // (target, name) of every name, sorted; nothing is opened.
  std::vector<std::pair<std::string, std::string>> Names() const;
  std::vector<std::string> Targets() const;  // that have a plan or a name, sorted
  bool HasTarget(const std::string& target) const;
  // Whether a target holds a graph of this name or key.
  bool Holds(const std::string& target, const std::string& name) const;
  // The targets that hold a graph of this name or key, sorted.
  std::vector<std::string> Holders(const std::string& name) const;

 private:
  std::vector<std::string> Folders() const;
  std::string Read(const std::string& relative, const std::string& what) const;
  Value Document(const std::string& relative, const std::string& what) const;
  void Visit(const std::string& relative,
             const std::function<bool(const std::string&)>& visit) const;
  [[noreturn]] void Damaged(const std::string& relative, const std::string& what) const;

  std::string path_;
  std::unique_ptr<const StoreFiles> files_;
};

}  // namespace cudnn_aot
