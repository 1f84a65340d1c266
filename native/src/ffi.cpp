#include "ffi.h"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>

#include "error.h"

namespace cudnn_aot::ffi {
namespace {

struct Api {
  int (*set_stream)(int32_t device_type, int32_t device_id, void* stream, void** before);
  void (*move_from_raised)(void** error);
  int (*dec_ref)(void* object);
};

Api api;
bool ready = false;

template <typename F>
void Bind(const char* name, F* out) {
  // The default search order is the kernels' own, so both sides agree on one copy.
  *out = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
  if (*out == nullptr) {
    throw LaunchFailure(std::string("libtvm_ffi lacks ") + name +
                        ", want apache-tvm-ffi 0.1.15 or newer");
  }
}

void PromoteThisLibrary() {
  // Kernels resolve CuteDSLRT_* here, but Python loads extensions with local visibility.
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&PromoteThisLibrary), &info) == 0 ||
      dlopen(info.dli_fname, RTLD_LAZY | RTLD_GLOBAL | RTLD_NOLOAD) == nullptr) {
    throw LaunchFailure("this library cannot make its symbols visible to kernels");
  }
}

std::string OneLine(const FfiByteArray& text) {
  std::string out(text.data, text.size);
  while (!out.empty() && (out.back() == '\n' || out.back() == ' ')) out.pop_back();
  std::replace(out.begin(), out.end(), '\n', ' ');
  return out;
}

}  // namespace

void Init(const std::string& path) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (ready) return;
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw LaunchFailure(std::string("libtvm_ffi did not load: ") + dlerror());
  }
  Bind("TVMFFIEnvSetStream", &api.set_stream);
  Bind("TVMFFIErrorMoveFromRaised", &api.move_from_raised);
  Bind("TVMFFIObjectDecRef", &api.dec_ref);
  PromoteThisLibrary();
  ready = true;
}

bool Ready() { return ready; }

Raised TakeRaised() {
  void* error = nullptr;
  api.move_from_raised(&error);
  if (error == nullptr) return {"Error", "no message"};
  const auto* cell =
      reinterpret_cast<const FfiErrorCell*>(static_cast<const char*>(error) + sizeof(FfiObject));
  Raised out{OneLine(cell->kind), OneLine(cell->message)};
  api.dec_ref(error);
  return out;
}

StreamScope::StreamScope(DLDevice device, void* stream) : device_(device), stream_(stream) {
  if (api.set_stream(device.device_type, device.device_id, stream, &before_) != 0) {
    throw LaunchFailure("tvm-ffi refused the stream: " + TakeRaised().message);
  }
}

StreamScope::~StreamScope() {
  if (before_ == stream_) return;
  api.set_stream(device_.device_type, device_.device_id, before_, nullptr);
}

void Release(const FfiAny& value) {
  if (value.type_index >= kFfiObjectBegin) api.dec_ref(value.v_ptr);
}

}  // namespace cudnn_aot::ffi
