/* What a compiled kernel calls of CUDA, for one whose host side is run without a GPU: its launch
 * prints the grid and the three TMA descriptors that are its first, third and fifth parameters. */
#include <stdint.h>
#include <stdio.h>

typedef struct { uint32_t grid[3], block[3]; size_t smem; void *stream; void *attributes; unsigned count; } Config;

int CuteDSLRT_TVMFFISetRaisedCudaError(int error) { return error; }
int _cuKernelGetAttribute(int *value) { *value = 0; return 0; }
int _cudaDeviceGetAttribute(int *value) { *value = 232448; return 0; }
int _cudaGetDevice(int *device) { *device = 0; return 0; }
int _cudaKernelSetAttributeForDevice(void) { return 0; }
int _cudaLibraryGetKernel(void **kernel) { *kernel = (void *)1; return 0; }
int _cudaLibraryLoadData(void **library) { *library = (void *)1; return 0; }
int _cudaSetDevice(void) { return 0; }
int cuda_dialect_init_library_once(void) { return 0; }
int cuda_dialect_unload_library_once(void) { return 0; }
int _cudaLaunchKernelEx(const Config *config, const void *kernel, void **params) {
  printf("[[%u]", config->grid[0]);
  for (int i = 0; i < 5; i += 2) {
    const uint32_t *words = params[i];
    printf(", [%u", words[0]);
    for (int j = 1; j < 16; ++j) printf(", %u", words[j]);
    printf("]");
  }
  printf("]\n");
  fflush(stdout);
  return 0;
}
