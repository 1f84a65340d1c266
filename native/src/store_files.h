// The files that a store is made of, in a folder or in one pack file, as `cache.files` and
// `cache.pack` have them; the reader does not know which.
//
// Paths are relative to the store. Where a number is returned it is 0 or that of an error: ENOENT
// for what is not there, EBADMSG for an entry of a pack that zeros do not follow.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace cudnn_aot {

class StoreFiles {
 public:
  virtual ~StoreFiles() = default;

  // All bytes of a regular file that is no link, and that no link in the store leads to.
  virtual int Read(const std::string& relative, std::string* out) const = 0;
  // Whether anything lies there, a link that leads nowhere too.
  virtual bool Has(const std::string& relative) const = 0;
  // Hands out the names in a folder, none if it is none, until `visit` returns false.
  virtual int List(const std::string& folder,
                   const std::function<bool(const std::string&)>& visit) const = 0;
};

// The files of the store at a path, which may be reached through a link. Throws StoreFailure:
// kNotAStore for a file that is no pack, kDamaged for a pack whose index is not what was written.
std::unique_ptr<const StoreFiles> OpenStoreFiles(const std::string& path);

}  // namespace cudnn_aot
