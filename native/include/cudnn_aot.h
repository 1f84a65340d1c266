/* cudnn-aot: serving stored plans from C and C++, without Python. See docs/cpp.md.
 *
 * Every function that can fail returns an error, or NULL for success. An error is a value: it is
 * the caller's, to be read and given to cudnn_aot_error_free. Texts are UTF-8 and end in a zero;
 * what a function hands out lives as long as the object that it was asked of. Where a text may be
 * NULL it stands for what is usual. Any number of threads may use any object at once, and free it
 * when none does.
 */
#ifndef CUDNN_AOT_H_
#define CUDNN_AOT_H_

#include <stdint.h>

/* Tensors are those of DLPack 1. Where its header is not found, the part used here is declared; a
 * program that has another copy of dlpack.h includes that first. */
#ifndef DLPACK_DLPACK_H_
#if defined(__has_include)
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#endif
#endif
#endif
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_
typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 } DLDeviceType;
typedef enum {
  kDLInt = 0U,
  kDLUInt = 1U,
  kDLFloat = 2U,
  kDLBfloat = 4U,
  kDLBool = 6U
} DLDataTypeCode;
typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;
typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;
typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; NULL for a contiguous tensor */
  uint64_t byte_offset;
} DLTensor;
#endif

#if defined(__cplusplus)
extern "C" {
#endif

#define CUDNN_AOT_API __attribute__((visibility("default")))

/* What an error is: the classes of Python's cudnn_aot.errors. */
typedef enum cudnn_aot_code {
  CUDNN_AOT_SUCCESS = 0,
  CUDNN_AOT_USAGE_ERROR = 1,               /* an argument is wrong */
  CUDNN_AOT_NOT_A_STORE_ERROR = 2,         /* the path is no store of a format that is read here */
  CUDNN_AOT_STORE_ERROR = 3,               /* the store cannot be read as asked */
  CUDNN_AOT_DAMAGED_ERROR = 4,             /* stored bytes are not what was recorded */
  CUDNN_AOT_NOT_IN_STORE_ERROR = 5,        /* no such name, key, target or provider */
  CUDNN_AOT_GRAPH_NOT_SUPPORTED_ERROR = 6, /* it was declined when the store was built */
  CUDNN_AOT_REQUIREMENT_ERROR = 7,         /* this host, driver or device does not run the plan */
  CUDNN_AOT_LAUNCH_ERROR = 8,              /* CUDA or a kernel failed */
  CUDNN_AOT_REFUSED_ERROR = 9,             /* a call does not fit the plan; nothing was launched */
  CUDNN_AOT_INTERNAL_ERROR = 10,           /* out of memory, or a fault of this library */
  CUDNN_AOT_PIN_ERROR = 11                 /* not the store of the root digest that was asked for */
} cudnn_aot_code;

/* Operand of an error that is about none. */
#define CUDNN_AOT_NO_OPERAND INT64_MIN

typedef struct cudnn_aot_error cudnn_aot_error;
typedef struct cudnn_aot_store cudnn_aot_store;
typedef struct cudnn_aot_plan cudnn_aot_plan;

CUDNN_AOT_API const char* cudnn_aot_version(void); /* "0.1.0" */

/* The code's class, "RefusedError"; "InternalError" for one that Python has no class for. */
CUDNN_AOT_API const char* cudnn_aot_code_name(cudnn_aot_code code);

/* Of NULL: CUDNN_AOT_SUCCESS, "", "" and CUDNN_AOT_NO_OPERAND. */
CUDNN_AOT_API cudnn_aot_code cudnn_aot_error_code(const cudnn_aot_error* error);
CUDNN_AOT_API const char* cudnn_aot_error_message(const cudnn_aot_error* error); /* one line */
CUDNN_AOT_API const char* cudnn_aot_error_rule(const cudnn_aot_error* error);    /* of a refusal */
CUDNN_AOT_API int64_t cudnn_aot_error_operand(const cudnn_aot_error* error);     /* a uid */
CUDNN_AOT_API void cudnn_aot_error_free(cudnn_aot_error* error);

/* Opens the store at `path`, a folder or a pack; NULL for those at CUDNN_AOT_STORE, with ':'
 * between them. `target` is the one whose plans are wanted, or NULL. CUDNN_AOT_PIN holds here too;
 * with CUDNN_AOT_TRUST, whose signatures are not checked here, a pin is needed. Touches no GPU. */
CUDNN_AOT_API cudnn_aot_error* cudnn_aot_open(const char* path, const char* target,
                                              cudnn_aot_store** out);

/* Opens stores that lie in layers: plans are those of the first that has them whole. `digests` are
 * the root digests that they must have, one for each; NULL for those at CUDNN_AOT_PIN, if it is
 * set. What is read later is compared with what had that digest. No layers and no
 * digests: those at CUDNN_AOT_STORE. */
CUDNN_AOT_API cudnn_aot_error* cudnn_aot_open_layers(int32_t num_layers, const char* const* paths,
                                                     const char* const* digests, const char* target,
                                                     cudnn_aot_store** out);

/* Writes the root digest of a layer, as it lies there now: 64 hex digits and a zero. */
CUDNN_AOT_API cudnn_aot_error* cudnn_aot_store_digest(const cudnn_aot_store* store, int32_t layer,
                                                      char* out);
CUDNN_AOT_API void cudnn_aot_store_free(cudnn_aot_store* store); /* its plans live on */

/* Calls `each` for every named graph, in order of target and name. */
CUDNN_AOT_API cudnn_aot_error* cudnn_aot_store_names(const cudnn_aot_store* store,
                                                     void (*each)(void* context, const char* target,
                                                                  const char* name),
                                                     void* context);

/* Loads the best plan of a graph, by its name or its key. `target` is a name, needed where several
 * for hosts as this one hold the graph and the store was opened for none; `provider` is "native",
 * or NULL for any. This host is checked, and every byte that is loaded; no GPU is touched. */
CUDNN_AOT_API cudnn_aot_error* cudnn_aot_store_plan(const cudnn_aot_store* store, const char* name,
                                                    const char* target, const char* provider,
                                                    cudnn_aot_plan** out);
CUDNN_AOT_API void cudnn_aot_plan_free(cudnn_aot_plan* plan);

typedef struct {
  const char* name; /* that it was asked for by */
  const char* graph_key;
  const char* target;
  const char* engine; /* "gemm.sm90.persistent" */
  DLDeviceType device_type;
  int32_t num_operands;
  int32_t num_symbols;
} cudnn_aot_plan_info;

CUDNN_AOT_API cudnn_aot_plan_info cudnn_aot_plan_get_info(const cudnn_aot_plan* plan);

typedef enum {
  CUDNN_AOT_INPUT = 0,
  CUDNN_AOT_OUTPUT = 1,
  CUDNN_AOT_SCALAR = 2 /* passed by value: a host tensor of one element */
} cudnn_aot_operand_kind;

typedef struct {
  int64_t uid;
  const char* name;
  cudnn_aot_operand_kind kind;
  DLDataType dtype;
  int32_t rank;
  int32_t is_optional; /* a call may leave it out: an optional tensor, a scalar with a default */
} cudnn_aot_operand;

typedef struct {
  const char* name;
  int64_t min;
  int64_t max;
  int64_t multiple_of;
  int64_t hint; /* the value that the plan was made for */
} cudnn_aot_symbol;

/* By index: operands in ascending uid order. An index that is none gives an empty record. */
CUDNN_AOT_API cudnn_aot_operand cudnn_aot_plan_operand(const cudnn_aot_plan* plan, int32_t index);
CUDNN_AOT_API cudnn_aot_symbol cudnn_aot_plan_symbol(const cudnn_aot_plan* plan, int32_t index);

/* The uid of an operand by its name in the graph. */
CUDNN_AOT_API cudnn_aot_error* cudnn_aot_plan_uid(const cudnn_aot_plan* plan, const char* name,
                                                  int64_t* out);

/* Values of symbols: `names[i]` is `values[i]`. */
typedef struct {
  int32_t count;
  const char* const* names;
  const int64_t* values;
} cudnn_aot_symbols;

/* Extents and strides, in elements, that an operand is declared to have where all symbols have
 * these values (NULL for none): `rank` numbers each. */
CUDNN_AOT_API cudnn_aot_error* cudnn_aot_plan_layout(const cudnn_aot_plan* plan, int64_t uid,
                                                     const cudnn_aot_symbols* symbols, int64_t* dim,
                                                     int64_t* stride);

/* The workspace in bytes that a call with these values may need; NULL: any call. */
CUDNN_AOT_API cudnn_aot_error* cudnn_aot_plan_workspace_bytes(const cudnn_aot_plan* plan,
                                                              const cudnn_aot_symbols* symbols,
                                                              int64_t* out);

/* Checks a device and does all lazy CUDA work of the plan on it; -1 is the current one. Idempotent;
 * needed before an execute is captured into a CUDA graph. */
CUDNN_AOT_API cudnn_aot_error* cudnn_aot_plan_prepare(cudnn_aot_plan* plan, int32_t device);

/* Checks one call and launches it on `stream`, a cudaStream_t. `tensors[i]` is bound to the operand
 * of `uids[i]`; NULL, and uids that the plan has not, count for nothing. `workspace` lies on the
 * plan's device and has `workspace_bytes`. Symbols that are not given (`symbols` may be NULL) are
 * read from the tensors. Waits for nothing and allocates no device memory. */
CUDNN_AOT_API cudnn_aot_error* cudnn_aot_plan_execute(
    cudnn_aot_plan* plan, int32_t num_tensors, const int64_t* uids, const DLTensor* const* tensors,
    void* workspace, int64_t workspace_bytes, void* stream, const cudnn_aot_symbols* symbols);

#if defined(__cplusplus)
} /* extern "C" */
#endif

#endif /* CUDNN_AOT_H_ */
