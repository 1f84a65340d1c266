// The two symbols that compiled kernels import from the DSL's runtime library, so that serving
// needs no DSL. Signatures as in its public header CuteDSLRuntime.h.
#include <dlfcn.h>

#include <cstdint>
#include <string>

namespace {

using SetError = void (*)(const char* kind, const char** parts, int32_t num_parts);

constexpr const char* kKind = "CUDADialectError";

std::string CudaErrorText(int32_t code) {
  using Text = const char* (*)(int);
  auto name = reinterpret_cast<Text>(dlsym(RTLD_DEFAULT, "cudaGetErrorName"));
  auto text = reinterpret_cast<Text>(dlsym(RTLD_DEFAULT, "cudaGetErrorString"));
  std::string out = "CUDA error " + std::to_string(code);
  if (name != nullptr && text != nullptr) {
    out += std::string(" (") + name(code) + "): " + text(code);
  }
  return out;
}

void Raise(SetError set_error, const std::string& message) {
  const char* parts[] = {message.c_str()};
  set_error(kKind, parts, 1);
}

std::string Triple(int32_t x, int32_t y, int32_t z) {
  return "(" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + ")";
}

}  // namespace

#define CUDNN_AOT_EXPORT extern "C" __attribute__((visibility("default"), used))

CUDNN_AOT_EXPORT void CuteDSLRT_TVMFFISetRaisedCudaError(SetError set_error, int32_t code) {
  Raise(set_error, CudaErrorText(code));
}

CUDNN_AOT_EXPORT void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(
    SetError set_error, int32_t grid_x, int32_t grid_y, int32_t grid_z, int32_t block_x,
    int32_t block_y, int32_t block_z, int32_t block_threads, int64_t dynamic_smem, int32_t device,
    int32_t max_threads, int32_t max_block_x, int32_t max_block_y, int32_t max_block_z,
    int32_t max_grid_x, int32_t max_grid_y, int32_t max_grid_z, int32_t max_smem,
    int32_t max_smem_optin, const char* violation, const char* source_file, int32_t source_line,
    int32_t source_col, int32_t source_end_col) {
  static_cast<void>(source_col);
  static_cast<void>(source_end_col);
  std::string message =
      std::string("launch refused") + (violation == nullptr ? "" : std::string(": ") + violation) +
      ": got grid " + Triple(grid_x, grid_y, grid_z) + ", block " +
      Triple(block_x, block_y, block_z) + " of " + std::to_string(block_threads) + " threads, " +
      std::to_string(dynamic_smem) + " bytes of shared memory; device " + std::to_string(device) +
      " takes grid " + Triple(max_grid_x, max_grid_y, max_grid_z) + ", block " +
      Triple(max_block_x, max_block_y, max_block_z) + " of " + std::to_string(max_threads) +
      " threads, " + std::to_string(max_smem) + " bytes, " + std::to_string(max_smem_optin) +
      " by opting in";
  if (source_file != nullptr && *source_file != '\0') {
    message += std::string(" at ") + source_file + ":" + std::to_string(source_line);
  }
  Raise(set_error, message);
}
