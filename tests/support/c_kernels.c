/* Kernels written by hand against the tvm-ffi C ABI: they share nothing with the compiler that
 * makes the real ones, nor with the executor's own declarations. */
#include <stdint.h>
#include <string.h>

typedef struct { int32_t type, id; } Device;
typedef struct { uint8_t code, bits; uint16_t lanes; } DType;
typedef struct {
  void *data; Device device; int32_t ndim; DType dtype;
  int64_t *shape, *strides; uint64_t byte_offset;
} Tensor;
typedef struct { int32_t type_index; uint32_t padding; union { int64_t i; double f; void *p; }; } Any;

extern void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);

#ifndef VERSION
#define VERSION 1
#endif

static int fail(const char *kind, const char *message) {
  TVMFFIErrorSetRaisedFromCStr(kind, message);
  return -1;
}

/* (y, x, alpha): y[i, j] = alpha * x[i, j] + VERSION - 1, FLOAT, any strides */
int __tvm_ffi_scale(void *self, const Any *args, int32_t n, Any *ret) {
  if (n != 3 || args[0].type_index != 7 || args[1].type_index != 7 || args[2].type_index != 3)
    return fail("TypeError", "scale wants two tensors and a float");
  Tensor *y = args[0].p, *x = args[1].p;
  for (int64_t i = 0; i < y->shape[0]; ++i)
    for (int64_t j = 0; j < y->shape[1]; ++j)
      ((float *)y->data)[i * y->strides[0] + j * y->strides[1]] =
          (float)args[2].f * ((float *)x->data)[i * x->strides[0] + j * x->strides[1]] +
          (VERSION - 1);
  return 0;
}

/* (y): sets every byte of every element, any type, any strides */
static void paint(const Tensor *y, int axis, char *at) {
  int64_t bytes = y->dtype.bits * y->dtype.lanes / 8;
  if (axis == y->ndim) memset(at, 0xEE, bytes);
  else
    for (int64_t i = 0; i < y->shape[axis]; ++i)
      paint(y, axis + 1, at + i * y->strides[axis] * bytes);
}
int __tvm_ffi_paint(void *self, const Any *args, int32_t n, Any *ret) {
  paint(args[0].p, 0, ((Tensor *)args[0].p)->data);
  return 0;
}

/* (out, ...): describes all arguments in the INT64 tensor `out`, ended by -1 */
int __tvm_ffi_echo(void *self, const Any *args, int32_t n, Any *ret) {
  int64_t *out = ((Tensor *)args[0].p)->data;
  for (int32_t k = 1; k < n; ++k) {
    *out++ = args[k].type_index;
    if (args[k].type_index == 7) {
      Tensor *t = args[k].p;
      *out++ = (int64_t)t->data; *out++ = t->device.type; *out++ = t->device.id;
      *out++ = t->dtype.code; *out++ = t->dtype.bits; *out++ = t->ndim;
      for (int a = 0; a < t->ndim; ++a) *out++ = t->shape[a];
      for (int a = 0; a < t->ndim; ++a) *out++ = t->strides[a];
    } else {
      memcpy(out++, &args[k].i, 8);
    }
  }
  *out = -1;
  return 0;
}

int __tvm_ffi_refuse(void *self, const Any *args, int32_t n, Any *ret) {
  return fail("ValueError", "first line\nsecond line\n");
}

/* (launch): counts its calls by the value of `launch` */
static int64_t calls[2];
int __tvm_ffi_count(void *self, const Any *args, int32_t n, Any *ret) {
  ++calls[args[0].i != 0];
  return 0;
}
int __tvm_ffi_counted(void *self, const Any *args, int32_t n, Any *ret) {
  memcpy(((Tensor *)args[0].p)->data, calls, sizeof calls);
  return 0;
}

/* (flags): sets flags[0] and waits until flags[1] is set, to show that two calls overlap */
int __tvm_ffi_meet(void *self, const Any *args, int32_t n, Any *ret) {
  volatile int64_t *mine = ((Tensor *)args[0].p)->data, *other = ((Tensor *)args[1].p)->data;
  *mine = 1;
  for (int64_t spin = 0; spin < 4000000000LL; ++spin)
    if (*other) return 0;
  return fail("RuntimeError", "the other call never ran");
}

/* (...): nothing, so that a bench times the executor alone */
int __tvm_ffi_nothing(void *self, const Any *args, int32_t n, Any *ret) { return 0; }
