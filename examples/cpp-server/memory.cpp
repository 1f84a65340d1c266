#include "memory.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Cuda {
  int (*set_device)(int);
  int (*malloc)(void**, size_t);
  int (*free)(void*);
  int (*memcpy)(void*, const void*, size_t, int);
  int (*stream_create)(void**);
  int (*stream_destroy)(void*);
  int (*stream_synchronize)(void*);
} cuda;

constexpr int kMemcpyDefault = 4;  // cudaMemcpyDefault

template <typename F>
void Bind(const char* name, F* out) {
  *out = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
  if (*out != nullptr) return;
  std::fprintf(stderr, "error: no libcudart in this process has %s\n", name);
  std::exit(1);
}

void Check(int code, const char* what) {
  if (code == 0) return;
  std::fprintf(stderr, "error: %s failed with CUDA error %d\n", what, code);
  std::exit(1);
}

}  // namespace

Device::Device(bool use_cuda, int index) : cuda_(use_cuda), index_(index) {
  if (!cuda_) return;
  Bind("cudaSetDevice", &cuda.set_device);
  Bind("cudaMalloc", &cuda.malloc);
  Bind("cudaFree", &cuda.free);
  Bind("cudaMemcpy", &cuda.memcpy);
  Bind("cudaStreamCreate", &cuda.stream_create);
  Bind("cudaStreamDestroy", &cuda.stream_destroy);
  Bind("cudaStreamSynchronize", &cuda.stream_synchronize);
}

void Device::UseOnThisThread() const {
  if (cuda_) Check(cuda.set_device(index_), "cudaSetDevice");
}

Memory Device::Allocate(size_t bytes) const {
  constexpr size_t kAlign = 256;
  bytes = (bytes + kAlign - 1) / kAlign * kAlign + kAlign;  // never none
  if (!cuda_) return Memory(std::aligned_alloc(kAlign, bytes), std::free);
  void* data = nullptr;
  Check(cuda.malloc(&data, bytes), "cudaMalloc");
  return Memory(data, [](void* held) { cuda.free(held); });
}

void Device::Write(void* to, const std::vector<char>& from) const {
  if (!cuda_) {
    std::memcpy(to, from.data(), from.size());
  } else {
    Check(cuda.memcpy(to, from.data(), from.size(), kMemcpyDefault), "cudaMemcpy");
  }
}

void Device::Read(std::vector<char>* to, const void* from) const {
  if (!cuda_) {
    std::memcpy(to->data(), from, to->size());
  } else {
    Check(cuda.memcpy(to->data(), from, to->size(), kMemcpyDefault), "cudaMemcpy");
  }
}

void Device::Synchronize(void* stream) const {
  if (cuda_) Check(cuda.stream_synchronize(stream), "cudaStreamSynchronize");
}

Memory Device::MakeStream() const {
  if (!cuda_) return nullptr;
  void* stream = nullptr;
  Check(cuda.stream_create(&stream), "cudaStreamCreate");
  return Memory(stream, [](void* held) { cuda.stream_destroy(held); });
}
