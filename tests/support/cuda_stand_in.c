/* A CUDA runtime and driver that do nothing but keep a log: what the host side asks of CUDA can be
 * tested without a GPU. One source for both libraries. STAND_IN_LOG names the log; STAND_IN_SET
 * changes what devices report, as "major=8 driver=12000 devices=2". */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(const char *format, ...) {
  FILE *log = fopen(getenv("STAND_IN_LOG"), "a");
  va_list args;
  va_start(args, format);
  vfprintf(log, format, args);
  va_end(args);
  fputc('\n', log);
  fclose(log);
}

static int setting(const char *name, int otherwise) {
  const char *all = getenv("STAND_IN_SET");
  const char *at = all ? strstr(all, name) : NULL;
  return at ? atoi(at + strlen(name) + 1) : otherwise;
}

static _Thread_local int current_device;

typedef struct { uint32_t grid[3], block[3]; size_t smem; void *stream; void *attributes; unsigned count; } Config;
#ifdef DRIVER
/* Kernel handles 1 to 3 have these parameters; their functions are 0xF1 to 0xF3. */
static const size_t kernel_params[][4] = {{0}, {16, 4, 8}, {8, 8}, {12, 8}};
int cuKernelGetParamInfo(const void *kernel, size_t index, size_t *offset, size_t *size) {
  intptr_t handle = (intptr_t)kernel;
  if (setting("param_info_error", 0)) return setting("param_info_error", 0);
  if (handle > 3) return 1;
  if (index > 3 || kernel_params[handle][index] == 0) return 1;
  for (size_t i = 0, next = 0; i <= index; ++i) {
    *size = kernel_params[handle][i];
    *offset = *size == 8 ? (next + 7) / 8 * 8 : next;
    next = *offset + *size;
  }
  return 0;
}
int cuKernelGetFunction(void **function, const void *kernel) {
  *function = (void *)((intptr_t)kernel + 0xF0);
  return setting("function_error", 0);
}
int cuLaunchKernelEx(const Config *config, const void *function, void **args, void **extra) {
  int error = setting("launch_error", setting("refuse", 0));
  if (error) return error;
  unsigned char params[64] = {0};
  size_t offset, bytes = 0;
  const void *kernel = (const void *)((intptr_t)function & 0xF);
  for (size_t i = 0; cuKernelGetParamInfo(kernel, i, &offset, &bytes) == 0; ++i) {
    memcpy(params + offset, args ? args[i] : (char *)extra[1] + offset, bytes);
  }
  char text[129] = "";
  for (int i = 0; i < 64; ++i) sprintf(text + 2 * i, "%02x", params[i]);
  say("driver launch %p grid %u stream %p params %s", function, config->grid[0], config->stream, text);
  return 0;
}
static _Thread_local void *stack[8];
static _Thread_local int depth;
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
  say("retain %d", device);
  *context = (void *)(intptr_t)(0xC0 + device);
  return 0;
}
int cuCtxPushCurrent_v2(void *context) { stack[depth++] = context; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = stack[--depth]; return 0; }
int cuCtxGetCurrent(void **context) { *context = depth ? stack[depth - 1] : NULL; return 0; }
int cuCtxGetDevice(int *device) { *device = (int)(intptr_t)stack[depth - 1] - 0xC0; return 0; }
int cuStreamGetCtx(void *stream, void **context) {
  *context = (void *)(intptr_t)(0xC0 + setting("stream_device", 0));
  return setting("stream_error", 0);
}
int cuGetErrorString(int code, const char **text) { *text = "stand-in error"; return 0; }
static int fill(int width, unsigned long long data, unsigned value, size_t count, void *stream) {
  say("fill%d %llx value %x count %zu stream %p context %p", width, data, value, count, stream,
      depth ? stack[depth - 1] : NULL);
  return setting("fill_error", 0);
}
int cuMemsetD8Async(unsigned long long d, unsigned char v, size_t n, void *s) { return fill(8, d, v, n, s); }
int cuMemsetD16Async(unsigned long long d, unsigned short v, size_t n, void *s) { return fill(16, d, v, n, s); }
int cuMemsetD32Async(unsigned long long d, unsigned v, size_t n, void *s) { return fill(32, d, v, n, s); }
#else
int cudaGetDevice(int *device) { *device = current_device; return setting("get_device_error", 0); }
int cudaSetDevice(int device) { current_device = device; return 0; }
int cudaGetDeviceCount(int *count) {
  *count = setting("devices", 2);
  return *count ? setting("count_error", 0) : 100;
}
int cudaDriverGetVersion(int *version) { *version = setting("driver", 13000); return 0; }
int cudaGetLastError(void) { return 0; }
const char *cudaGetErrorName(int code) { return "cudaErrorStandIn"; }
const char *cudaGetErrorString(int code) { return "stand-in error"; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case 16: *value = setting("sm_count", 132) - device; say("sm_count of %d", device); break;
    case 38: *value = setting("l2", 62914560); break;
    case 75: *value = setting("major", 9); break;
    case 76: *value = setting("minor", 0); break;
    case 97: *value = setting("smem", 232448); break;
    default: *value = 1;
  }
  return 0;
}
/* What compiled kernels call through the archive that is linked into them. */
int cudaLibraryLoadData(void **library, const void *code, ...) {
  say("load library");
  *library = (void *)code;
  return 0;
}
int cudaLibraryGetKernel(void **kernel, void *library, const char *name) { *kernel = library; return 0; }
int cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) { return 0; }
int cudaFuncSetAttribute(const void *function, int attribute, int value) { return 0; }
int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) { *value = 0; return 0; }
int cudaLibraryUnload(void *library) { return 0; }
int cudaGetDriverEntryPointByVersion(const char *name, void **pointer, unsigned version,
                                     unsigned long long flags, int *status) {
  *pointer = (void *)cuKernelGetAttribute;  /* the one that is asked for */
  if (status) *status = 0;
  return 0;
}
int cudaLaunchKernelExC(const Config *config, const void *function, void **args) {
  say("launch grid %u %u %u stream %p device %d", config->grid[0], config->grid[1], config->grid[2],
      config->stream, current_device);
  return setting("launch_error", 0);
}
#endif
