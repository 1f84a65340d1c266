#include "tensor.h"

#include "dtype.h"

namespace cudnn_aot {

void RefuseObject(const char* rule, const Role& role, const std::string& got,
                  const std::string& want) {
  throw Refusal(rule, role.operand, std::string(role.name) + ": " + got + ", want " + want);
}

void DescribeTensor(const DLTensor& tensor, Buffer* out) {
  out->kind = Buffer::Kind::kTensor;
  out->data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  out->device = tensor.device;
  out->dtype = tensor.dtype;
  out->ndim = tensor.ndim;
  out->shape = tensor.shape;
  out->strides = tensor.strides;
}

void LoadElement(const Buffer& buffer, const DType& dtype, const Role& role, Buffer* out) {
  auto refuse = [&](const char* rule, const std::string& got) {
    RefuseObject(rule, role, got, std::string("a number for ") + dtype.name);
  };
  out->kind = Buffer::Kind::kNumber;
  for (int axis = 0; axis < buffer.ndim; ++axis) {
    if (buffer.shape[axis] != 1) {
      refuse("extents", "got a tensor of extents " + List(buffer.shape, buffer.ndim));
    }
  }
  if (buffer.device.device_type != kDLCPU && buffer.device.device_type != kDLCUDAHost) {
    refuse("device", "got one in device memory");
  }
  // Without a bfloat16 of its own, NumPy carries the bits as uint16 or as opaque bytes.
  bool bits = dtype.dl.code == kDLBfloat && buffer.dtype.code == kDLUInt && buffer.dtype.bits == 16;
  bool own = !bits && buffer.dtype.code != kDLOpaqueHandle;
  if ((!own && BitsOf(buffer.dtype) != BitsOf(dtype.dl)) ||
      !LoadNumber(own ? buffer.dtype : dtype.dl, buffer.data, &out->number, &out->integer,
                  &out->is_integer)) {
    refuse("dtype", "got " + Describe(buffer.dtype));
  }
}

int FindNamed(const Table& table, const std::string& name) {
  std::vector<std::string> names;
  int found = -1;
  for (size_t i = 0; i < table.operands.size(); ++i) {
    names.push_back(table.operands[i].name);
    if (names.back() != name) continue;
    if (found >= 0) {
      throw Refusal("name", Refusal::kNoOperand,
                    "got the name '" + name + "', which several operands have, want a uid");
    }
    found = static_cast<int>(i);
  }
  if (found >= 0) return found;
  throw Refusal("name", Refusal::kNoOperand, "got the name '" + name + "', want " + Choices(names));
}

}  // namespace cudnn_aot
