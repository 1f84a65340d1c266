// Reading the files of a store, as `cache.layout` lays them out and `cache.reader` reads them; the
// part that serving needs. Never locks, and keeps nothing.
//
// Every byte handed out was checked: a blob against the digest that names it, a document against
// its seal, the place it lies in and, in a store that was opened by its root digest, what lay there
// then. Throws StoreFailure: kDamaged for what fails, kNotInStore for what is not there, kStore for
// what the system does not let us read, kPin for what is not what was pinned, kUsage for a name or
// digest that is none.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store_files.h"
#include "value.h"

namespace cudnn_aot {

bool IsDigest(const std::string& text);  // 64 hex digits, lower case

// A path as it is shown: without empty components and those that are '.'.
std::string TidyPath(const std::string& path);

class StoreReader {
 public:
  // `digest` is the root digest that the store must have, or empty; `whole` is what messages call
  // all that is looked in. Throws StoreFailure: kNotAStore unless the folder or the pack is a store
  // of a format that we read, kDamaged where what says so is not what was written, kPin for a
  // store of another digest.
  StoreReader(const std::string& path, const std::string& digest, std::string whole);

  const std::string& path() const { return path_; }
  const std::string& pin() const { return pin_; }  // empty where it was opened without

  // Of all documents as they lie there now: the SHA-256 of a line "<SHA-256 of its bytes>  <path>"
  // for each, in ascending order of their paths. They name all blobs by digest.
  std::string RootDigest() const;

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
  std::map<std::string, std::string> HashDocuments() const;
  std::string Read(const std::string& relative, const std::string& what) const;
  void CheckPinned(const std::string& relative, const std::string* data) const;
  Value Document(const std::string& relative, const std::string& what) const;
  void Visit(const std::string& relative,
             const std::function<bool(const std::string&)>& visit) const;
  [[noreturn]] void Damaged(const std::string& relative, const std::string& what) const;
  void NeedShape(const std::string& relative, const Value& document,
                 void (*check)(const Value&)) const;

  std::string path_;
  std::string whole_;
  std::unique_ptr<const StoreFiles> files_;
  std::string pin_;
  std::map<std::string, std::string> pinned_;  // the SHA-256 of each document, by its path
};

}  // namespace cudnn_aot
