// The C layouts shared with other libraries: DLPack 1.x and the tvm-ffi call convention.
//
// Declared here so that building needs no header of either; both layouts are frozen by their
// owners within the major version that is checked where it matters.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cudnn_aot {

constexpr int32_t kDLCPU = 1;
constexpr int32_t kDLCUDA = 2;
constexpr int32_t kDLCUDAHost = 3;
constexpr int32_t kDLCUDAManaged = 13;

enum DLDataTypeCode : uint8_t {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLOpaqueHandle = 3,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6,
  kDLFloat8E4M3 = 10,  // float8_e4m3fn
  kDLFloat8E5M2 = 12,
  kDLFloat8E8M0 = 14,
  kDLFloat4E2M1 = 17,
};

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // elements; never null in what we pass on: compiled wrappers do not check
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};

struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};

constexpr uint64_t kDLFlagReadOnly = 1;

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor dl_tensor;
};

struct DLPackExchangeHeader {
  DLPackVersion version;
  DLPackExchangeHeader* prev_api;
};

// The table that a type publishes as __dlpack_c_exchange_api__ (capsule "dlpack_exchange_api").
struct DLPackExchangeApi {
  DLPackExchangeHeader header;
  void* managed_tensor_allocator;
  int (*managed_tensor_from_py_object_no_sync)(void* object, DLManagedTensorVersioned** out);
  void* managed_tensor_to_py_object_no_sync;
  int (*dltensor_from_py_object_no_sync)(void* object, DLTensor* out);  // may be null
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** out);
};

constexpr int32_t kFfiNone = 0;
constexpr int32_t kFfiInt = 1;
constexpr int32_t kFfiFloat = 3;
constexpr int32_t kFfiTensorPtr = 7;
constexpr int32_t kFfiObjectBegin = 64;  // from here on a value owns a reference

struct FfiAny {
  int32_t type_index;
  uint32_t zero_padding;
  union {
    int64_t v_int64;
    double v_float64;
    void* v_ptr;
  };
};

struct FfiByteArray {
  const char* data;
  size_t size;
};

struct FfiObject {
  uint64_t combined_ref_count;
  int32_t type_index;
  uint32_t padding;
  void (*deleter)(void* self, int flags);
};

struct FfiErrorCell {  // follows the FfiObject header of an error
  FfiByteArray kind;
  FfiByteArray message;
};

using FfiCall = int (*)(void* handle, const FfiAny* args, int32_t num_args, FfiAny* result);

static_assert(sizeof(DLTensor) == 48 && sizeof(FfiAny) == 16 && sizeof(FfiObject) == 24,
              "layouts of DLPack and tvm-ffi on a 64-bit machine");

}  // namespace cudnn_aot
