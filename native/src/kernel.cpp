#include "kernel.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "error.h"
#include "launch_template.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

namespace cudnn_aot {
namespace {

// CUDA symbols of a kernel bind on their first call: libcudart may come after this, or never.
constexpr int kLoadFlags = RTLD_LAZY | RTLD_LOCAL;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// The dynamic loader trusts a library's headers and faults on pages that are not there.
void RequireWholeLibrary(std::string_view bytes) {
  Elf64_Ehdr header;
  if (bytes.size() < sizeof header || bytes.compare(0, SELFMAG, ELFMAG) != 0) {
    throw LaunchFailure("kernel did not load: it is no ELF library");
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_phentsize != sizeof(Elf64_Phdr)) {
    throw LaunchFailure("kernel did not load: it is no 64-bit ELF library");
  }
  bool whole = header.e_phoff <= bytes.size() &&
               header.e_phnum * sizeof(Elf64_Phdr) <= bytes.size() - header.e_phoff;
  for (int i = 0; whole && i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, bytes.data() + header.e_phoff + i * sizeof segment, sizeof segment);
    whole = segment.p_offset <= bytes.size() && segment.p_filesz <= bytes.size() - segment.p_offset;
  }
  if (!whole) throw LaunchFailure("kernel did not load: the library is cut short");
}

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t wrote = write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  return true;
}

// The loader keeps the name of a library for life, and who reads files by these names, as a
// backtrace of libtvm_ffi does, dies of a bus error if there is an empty file by then. So the
// descriptor in the name is one that hardly anything gets once it is closed.
int MoveOutOfTheWay(int fd) {
  constexpr rlim_t kMost = 1024;  // a higher one costs the process a larger table of descriptors
  constexpr rlim_t kSlots = 64;   // for as many loads at once
  rlimit limit{};
  if (fd < 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0) return fd;
  rlim_t end = std::min(limit.rlim_cur, kMost);
  if (end < 4 * kSlots) return fd;
  int moved = fcntl(fd, F_DUPFD_CLOEXEC, static_cast<int>(end - kSlots));
  if (moved < 0) return fd;
  close(fd);
  return moved;
}

int CreateMemfd() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = memfd_create("cudnn_aot_kernel", kFlags | MFD_EXEC);
  if (fd < 0 && errno == EINVAL) fd = memfd_create("cudnn_aot_kernel", kFlags);  // Linux < 6.3
  return MoveOutOfTheWay(fd);
}

// dlopen takes a path string it has seen for the library it loaded then, and descriptor numbers
// repeat; so each path spells a number in components that the kernel skips: "/" is 0, "/." is 1.
// There are copies of this code in one process that know nothing of each other: the number says
// which one asks, too.
std::string UniquePath(int fd, uint32_t serial) {
  static const char copy = 0;
  auto address = reinterpret_cast<uintptr_t>(&copy);
  std::string path = "/proc/self/fd";
  auto spell = [&path](uint64_t number, int bits) {
    for (; bits != 0; --bits, number >>= 1) path += (number & 1) != 0 ? "/." : "/";
  };
  spell(serial, 32);  // first, since it differs most
  spell(address, 64);
  return path + "/" + std::to_string(fd);
}

// Writes the bytes into `fd` and seals it before it is mapped: what was checked is what runs.
bool FillMemfd(int fd, std::string_view bytes, std::string* error) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
  if (fd >= 0 && WriteAll(fd, bytes) && fcntl(fd, F_ADD_SEALS, kSeals) == 0) return true;
  *error = std::string("memfd: ") + std::strerror(errno);
  return false;
}

void* OpenFromMemory(int fd, uint32_t serial, std::string* error) {
  void* handle = dlopen(UniquePath(fd, serial).c_str(), kLoadFlags);
  if (handle == nullptr) *error = dlerror();
  return handle;
}

// For systems that forbid executable memfds: a private file that is gone after the load.
void* OpenFromFile(std::string_view bytes, std::string* error) {
  std::vector<std::string> folders;
  for (const char* name : {"TMPDIR", "XDG_RUNTIME_DIR"}) {
    if (const char* value = std::getenv(name)) folders.emplace_back(value);
  }
  folders.insert(folders.end(), {"/tmp", "/var/tmp", "/dev/shm"});
  for (const std::string& folder : folders) {
    std::string place = folder + "/cudnn_aot_XXXXXX";
    if (mkdtemp(place.data()) == nullptr) continue;
    std::string path = place + "/kernel.so";
    void* handle = nullptr;
    {
      Descriptor fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IXUSR));
      if (fd.get() >= 0 && WriteAll(fd.get(), bytes)) {
        handle = dlopen(path.c_str(), kLoadFlags);
        if (handle == nullptr) *error = dlerror();
      }
    }
    unlink(path.c_str());
    rmdir(place.c_str());
    if (handle != nullptr) return handle;
  }
  return nullptr;
}

// The libraries that are loaded, by digest; never closed. A fork waits for a load that is under
// way, so that a child finds neither this nor the loader half done.
struct Libraries {
  Libraries() {
    pthread_atfork([] { Get().mutex.lock(); }, [] { Get().mutex.unlock(); },
                   [] { Get().mutex.unlock(); });
  }
  static Libraries& Get() {
    static auto* libraries = new Libraries();
    return *libraries;
  }
  void* Find(const std::string& digest) {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = loaded.find(digest);
    return found == loaded.end() ? nullptr : found->second;
  }

  std::mutex mutex;
  std::map<std::string, void*> loaded;
  uint32_t serial = 0;
};

void* OpenLibrary(std::string_view bytes, const std::string& digest) {
  Libraries& libraries = Libraries::Get();
  if (void* handle = libraries.Find(digest)) return handle;
  RequireWholeLibrary(bytes);
  std::string error;
  Descriptor fd(CreateMemfd());
  bool is_filled = FillMemfd(fd.get(), bytes, &error);  // by as many threads at once as there are
  std::lock_guard<std::mutex> lock(libraries.mutex);
  void*& handle = libraries.loaded[digest];
  if (handle == nullptr && is_filled) {
    handle = OpenFromMemory(fd.get(), ++libraries.serial, &error);
  }
  if (handle == nullptr) handle = OpenFromFile(bytes, &error);
  if (handle == nullptr) throw LaunchFailure("kernel did not load: " + error);
  return handle;
}

}  // namespace

std::shared_ptr<const Kernel> LoadKernel(std::string_view bytes, const std::string& digest,
                                         const std::string& symbol) {
  void* handle = OpenLibrary(bytes, digest);
  std::string name = "__tvm_ffi_" + symbol;
  auto call = reinterpret_cast<FfiCall>(dlsym(handle, name.c_str()));
  if (call == nullptr) throw LaunchFailure("kernel library lacks the symbol '" + name + "'");
  // Host kernels have none, nor have kernels that other versions linked.
  auto* hook = static_cast<decltype(&LaunchHook)*>(dlsym(handle, "cudnn_aot_launch"));
  if (hook != nullptr) __atomic_store_n(hook, &LaunchHook, __ATOMIC_RELAXED);
  return std::make_shared<const Kernel>(Kernel{symbol, digest, call, hook != nullptr});
}

}  // namespace cudnn_aot
