/* Host functions that launch as compiled kernels do: through cudaLaunchKernelExC, with a kernel handle
 * that names the sizes of its parameters to the driver that stands in (cuda_stand_in.c). */
#include <stdint.h>
#include <string.h>

typedef struct {
  void *data;
  int32_t device[2];
  int32_t ndim;
  uint8_t dtype[4];
  int64_t *shape, *strides;
  uint64_t byte_offset;
} DLTensor;
typedef struct {
  int32_t type_index;
  uint32_t padding;
  union {
    int64_t v_int64;
    DLTensor *v_tensor;
  };
} Any;
typedef struct { uint32_t id, padding; char value[64]; } Attribute;
typedef struct { uint32_t grid[3], block[3]; size_t smem; void *stream; Attribute *attributes; unsigned count; } Config;

int cudaLaunchKernelExC(const void *config, const void *kernel, void **params);

static int launch(intptr_t kernel, void **params, uint32_t attribute) {
  Attribute cluster = {attribute};
  memset(cluster.value, 0x5A, sizeof cluster.value); /* what lies behind a value is never written */
  memset(cluster.value, 0, 12);
  Config config = {{3, 1, 1}, {128, 1, 1}, 1024, (void *)0x77, &cluster, 1};
  return cudaLaunchKernelExC(&config, (void *)kernel, params);
}

/* A descriptor that holds an address, an extent, a pointer behind the start of a buffer. */
static int described(const Any *args, intptr_t kernel, uint32_t attribute) {
  struct { char *address; uint32_t extent, kind; } x = {args[0].v_tensor->data, (uint32_t)args[0].v_tensor->shape[0], 9};
  int32_t rows = (int32_t)args[0].v_tensor->shape[0];
  char *behind = (char *)args[1].v_tensor->data + 48;
  void *params[] = {&x, &rows, &behind};
  return launch(kernel, params, attribute);
}
int __tvm_ffi_described(void *s, const Any *args, int32_t n, Any *result) { return described(args, 1, 4); }
int __tvm_ffi_unknown_attribute(void *s, const Any *args, int32_t n, Any *result) { return described(args, 1, 99); }
int __tvm_ffi_unknown_params(void *s, const Any *args, int32_t n, Any *result) { return described(args, 9, 4); }
int __tvm_ffi_twice(void *s, const Any *args, int32_t n, Any *result) {
  return described(args, 1, 4) || described(args, 1, 4);
}
int __tvm_ffi_shifted(void *s, const Any *args, int32_t n, Any *result) {
  uintptr_t shifted = (uintptr_t)args[0].v_tensor->data >> 4;
  void *params[] = {&shifted, &args[1].v_tensor->data};
  return launch(2, params, 4);
}
int __tvm_ffi_sum(void *s, const Any *args, int32_t n, Any *result) {
  uintptr_t sum = (uintptr_t)args[0].v_tensor->data + (uintptr_t)args[1].v_tensor->data;
  void *params[] = {&sum, &args[1].v_tensor->data};
  return launch(2, params, 4);
}
int __tvm_ffi_packed(void *s, const Any *args, int32_t n, Any *result) {
  struct __attribute__((packed)) { uint32_t extent; char *address; } x = {7, args[0].v_tensor->data};
  void *params[] = {&x, &args[1].v_tensor->data};
  return launch(3, params, 4);
}
