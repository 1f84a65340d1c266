#include "store_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "error.h"
#include "json.h"
#include "sha256.h"
#include "text.h"

namespace cudnn_aot {
namespace {

using Visit = std::function<bool(const std::string&)>;

// ---- A folder -------------------------------------------------------------------------------

// Not in every libc: struct open_how and RESOLVE_NO_SYMLINKS of linux/openat2.h.
struct OpenHow {
  uint64_t flags, mode, resolve;
};
constexpr long kOpenat2 = 437;
constexpr uint64_t kNoLinks = 0x04;

// As `openat` of each name on the way, none of which may be a link: ENOTDIR where one before the
// last is, else ELOOP.
int OpenEach(int root, const std::string& relative, int flags) {
  int at = root;
  int error = 0;
  for (size_t start = 0; at >= 0;) {
    size_t end = relative.find('/', start);
    bool is_last = end == std::string::npos;
    std::string name = relative.substr(start, is_last ? end : end - start);
    int next =
        openat(at, name.c_str(), O_NOFOLLOW | O_CLOEXEC | (is_last ? flags : O_PATH | O_DIRECTORY));
    error = errno;
    if (at != root) close(at);
    at = next;
    if (is_last) break;
    start = end + 1;
  }
  errno = error;
  return at;
}

class Folder : public StoreFiles {
 public:
  explicit Folder(std::string path) : root_(std::move(path) + "/") {}

  int Read(const std::string& relative, std::string* out) const override {
    int error = ESTALE;
    // A file server may have replaced it since its name was looked up: another look finds the new.
    for (int tries = 0; error == ESTALE && tries < kTries; ++tries) error = ReadOnce(relative, out);
    return error;
  }

  bool Has(const std::string& relative) const override {
    int fd = Open(relative, O_PATH);
    if (fd >= 0) close(fd);
    return fd >= 0;
  }

  int List(const std::string& relative, const Visit& visit) const override {
    int fd = Open(relative, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : errno;
    std::unique_ptr<DIR, int (*)(DIR*)> listed(fdopendir(fd), closedir);
    if (listed == nullptr) {
      int error = errno;
      close(fd);
      return error;
    }
    while (const dirent* entry = readdir(listed.get())) {
      std::string name = entry->d_name;
      if (name != "." && name != ".." && !visit(name)) break;
    }
    return 0;
  }

 private:
  static constexpr int kTries = 3;

  // A descriptor, or -1 and errno. Links lead to the store's folder, and nowhere in it: what lies
  // behind one in it no other reader or writer takes for a part of the store.
  int Open(const std::string& relative, int flags) const {
    int root = open(root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) return -1;
    OpenHow how = {static_cast<uint64_t>(flags | O_NOFOLLOW | O_CLOEXEC), 0, kNoLinks};
    auto fd = static_cast<int>(syscall(kOpenat2, root, relative.c_str(), &how, sizeof how));
    // Linux before 5.6, a filter of system calls, or a link, which the names tell the place of.
    if (fd < 0 && (errno == ENOSYS || errno == EPERM || errno == ELOOP)) {
      fd = OpenEach(root, relative, flags);
    }
    int error = errno;
    close(root);
    errno = error;
    return fd;
  }

  int ReadOnce(const std::string& relative, std::string* out) const {
    // Without O_NONBLOCK opening a FIFO waits for somebody to write into it.
    int fd = Open(relative, O_RDONLY | O_NONBLOCK);
    if (fd < 0) return errno;
    struct stat status;
    int error = fstat(fd, &status) != 0 ? errno : S_ISREG(status.st_mode) ? 0 : EINVAL;
    out->resize(error == 0 ? static_cast<size_t>(status.st_size) + 1 : 0);
    size_t size = 0;
    while (error == 0) {
      ssize_t got = read(fd, out->data() + size, out->size() - size);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) error = errno;
      if (got <= 0) break;
      size += static_cast<size_t>(got);
      if (size == out->size()) out->resize(2 * size);
    }
    close(fd);
    out->resize(size);
    return error;
  }

  std::string root_;
};

// ---- A pack ---------------------------------------------------------------------------------

constexpr std::string_view kName = "cudnn-aot pack ";
constexpr std::string_view kPackFormat = "1";
constexpr size_t kMagicBytes = 24;
constexpr size_t kHeaderBytes = 64;  // the magic, the index's size in 8 bytes, its digest in 32

uint64_t Aligned(uint64_t size) { return (size + 63) / 64 * 64; }

std::string Magic(std::string_view format) {
  std::string out = std::string(kName) + std::string(format) + "\n";
  out.resize(std::max(out.size(), kMagicBytes));
  return out;
}

bool IsZero(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == '\0'; });
}

std::string Hex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (char c : bytes) {
    auto byte = static_cast<unsigned char>(c);
    out += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return out;
}

// One descriptor, read by position: from any number of threads, and in a forked child.
class Pack : public StoreFiles {
 public:
  explicit Pack(const std::string& path) : path_(path) {
    fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0) Unreadable(errno);
    try {
      ReadIndex();
    } catch (...) {
      close(fd_);
      throw;
    }
  }
  ~Pack() override { close(fd_); }
  Pack(const Pack&) = delete;
  Pack& operator=(const Pack&) = delete;

  int Read(const std::string& relative, std::string* out) const override {
    const Entry* found = Find(relative);
    if (found == nullptr) return HasFolder(relative + "/") ? EISDIR : ENOENT;
    int error = At(found->offset, Aligned(found->size), out);
    if (error != 0) return error;
    if (!IsZero(std::string_view(*out).substr(std::min<size_t>(found->size, out->size())))) {
      return EBADMSG;
    }
    out->resize(std::min<size_t>(found->size, out->size()));
    return 0;
  }

  bool Has(const std::string& relative) const override {
    return Find(relative) != nullptr || HasFolder(relative + "/");
  }

  int List(const std::string& folder, const Visit& visit) const override {
    std::string prefix = folder + "/";
    for (auto at = LowerBound(prefix); at != entries_.end() && IsIn(*at, prefix);) {
      size_t end = at->path.find('/', prefix.size());
      std::string name = at->path.substr(prefix.size(), end - prefix.size());
      if (!visit(name)) break;
      // '0' comes after '/': past all that lies in the folder.
      at = end == std::string::npos ? at + 1 : LowerBound(prefix + name + "0");
    }
    return 0;
  }

 private:
  struct Entry {
    std::string path;
    uint64_t offset;
    uint64_t size;  // in bytes
  };
  using Entries = std::vector<Entry>;

  static bool IsIn(const Entry& entry, const std::string& prefix) {
    return entry.path.compare(0, prefix.size(), prefix) == 0;
  }

  Entries::const_iterator LowerBound(const std::string& path) const {
    return std::lower_bound(entries_.begin(), entries_.end(), path,
                            [](const Entry& entry, const auto& want) { return entry.path < want; });
  }

  const Entry* Find(const std::string& path) const {
    auto found = LowerBound(path);
    return found != entries_.end() && found->path == path ? &*found : nullptr;
  }

  bool HasFolder(const std::string& prefix) const {
    auto found = LowerBound(prefix);
    return found != entries_.end() && IsIn(*found, prefix);
  }

  // The bytes there, fewer where the file ends.
  int At(uint64_t offset, uint64_t size, std::string* out) const {
    out->resize(size);
    size_t done = 0;
    while (done < size) {
      ssize_t got = pread(fd_, out->data() + done, size - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return errno;
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    out->resize(done);
    return 0;
  }

  void ReadIndex() {
    struct stat status;
    if (fstat(fd_, &status) != 0) Unreadable(errno);
    if (!S_ISREG(status.st_mode)) NotAStore("it is not a regular file");
    auto file_size = static_cast<uint64_t>(status.st_size);
    std::string header, index;
    if (int error = At(0, kHeaderBytes, &header)) Unreadable(error);
    uint64_t size = IndexSize(header);
    if (size > file_size - kHeaderBytes) Damaged("its index is cut short");
    if (int error = At(kHeaderBytes, Aligned(size), &index)) Unreadable(error);
    uint64_t start = kHeaderBytes + index.size();
    std::string_view after = std::string_view(index).substr(std::min<size_t>(size, index.size()));
    bool is_padded = IsZero(after);
    index.resize(std::min<size_t>(size, index.size()));
    if (Sha256Hex(index) != Hex(header.substr(kHeaderBytes - 32))) {
      Damaged("its index does not match its digest");
    }
    if (!is_padded) Damaged("the bytes after its index are not zero");
    start = AddEntries(index, start, file_size);
    if (start != file_size) {
      Damaged("it has " + std::to_string(file_size) + " bytes, want " + std::to_string(start));
    }
  }

  uint64_t IndexSize(const std::string& header) const {
    if (header.compare(0, kName.size(), kName) != 0) NotAStore("it is a file, and no pack");
    if (header.size() < kHeaderBytes) Damaged("its header is cut short");
    std::string magic = header.substr(0, kMagicBytes);
    if (magic != Magic(kPackFormat)) {
      std::string format = magic.substr(kName.size(), magic.find('\n') - kName.size());
      bool is_number = !format.empty() && std::all_of(format.begin(), format.end(), [](char c) {
        return std::isdigit(static_cast<unsigned char>(c));
      });
      if (!is_number || magic != Magic(format)) Damaged("its header is not that of a pack");
      throw StoreFailure(Code::kNotAStore, "pack " + Quoted(path_) + " has format " + format +
                                               ", this version of cudnn-aot reads format " +
                                               std::string(kPackFormat) + ": update cudnn-aot");
    }
    uint64_t size = 0;
    for (size_t i = 0; i < 8; ++i) {
      size |= static_cast<uint64_t>(static_cast<unsigned char>(header[kMagicBytes + i])) << 8 * i;
    }
    return size;
  }

  // Returns where the last entry ends.
  uint64_t AddEntries(const std::string& index, uint64_t start, uint64_t file_size) {
    Value list;
    try {
      list = ParseJson(index);
    } catch (const JsonError&) {
      Damaged("its index is not JSON");
    }
    if (list.kind != Value::Kind::kList) Damaged("its index is not a list");
    entries_.reserve(list.items.size());
    for (const Value& each : list.items) {
      bool is_entry = each.kind == Value::Kind::kList && each.items.size() == 2 &&
                      each.items[0].kind == Value::Kind::kString &&
                      each.items[1].kind == Value::Kind::kInt && each.items[1].integer >= 0;
      if (!is_entry) Damaged("its index has an entry that is no path and size");
      const std::string& path = each.items[0].string;
      if (path.empty() || (!entries_.empty() && path <= entries_.back().path)) {
        Damaged("its paths are not in ascending order at " + Quoted(path));
      }
      auto size = static_cast<uint64_t>(each.items[1].integer);
      entries_.push_back({path, start, size});
      if (size <= file_size) start = Aligned(start + size);
      if (size > file_size || start > file_size) {
        Damaged("its file " + Quoted(path) + " is cut short");
      }
    }
    if (CanonicalJson(list) != index) Damaged("its index is not in canonical form");
    return start;
  }

  [[noreturn]] void NotAStore(const std::string& what) const {
    throw StoreFailure(Code::kNotAStore, Quoted(path_) + " is not a store: " + what);
  }
  [[noreturn]] void Damaged(const std::string& what) const {
    throw StoreFailure(Code::kDamaged, path_ + " is damaged: " + what);
  }
  [[noreturn]] void Unreadable(int error) const {
    throw StoreFailure(Code::kNotAStore,
                       "cannot read " + Quoted(path_) + ": " + std::strerror(error));
  }

  std::string path_;
  int fd_ = -1;
  Entries entries_;  // in ascending order of path
};

}  // namespace

std::unique_ptr<const StoreFiles> OpenStoreFiles(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
    return std::make_unique<Pack>(path);
  }
  return std::make_unique<Folder>(path);
}

}  // namespace cudnn_aot
