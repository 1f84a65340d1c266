// cuDNN data types by name, as DLPack describes them.
#pragma once

#include <string>

#include "abi.h"

namespace cudnn_aot {

struct DType {
  const char* name;
  DLDataType dl;

  int64_t bytes() const { return dl.bits * dl.lanes / 8; }
  bool is_float() const { return dl.code != kDLInt && dl.code != kDLUInt && dl.code != kDLBool; }
};

const DType* FindDType(const std::string& name);  // null when unknown
std::string DTypeNames();                         // for messages
std::string Describe(DLDataType dtype);           // "float32", "bfloat16", ...

// `value` rounded to `dtype` (to nearest, ties to even) where that is HALF, BFLOAT16 or FLOAT.
double RoundTo(const DType& dtype, double value);
// The number stored at `data`; false for a type without one (complex, opaque, 8-bit floats).
bool LoadNumber(DLDataType dtype, const void* data, double* number, int64_t* integer,
                bool* is_integer);

}  // namespace cudnn_aot
