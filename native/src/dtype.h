// cuDNN data types by name, as DLPack describes their storage slots.
#pragma once

#include <string>

#include "abi.h"

namespace cudnn_aot {

struct DType {
  const char* name;
  DLDataType dl;  // of a slot: a 4-bit type has two elements to each

  int64_t bytes() const { return dl.bits * dl.lanes / 8; }  // of a slot
  int elements_per_slot() const { return dl.lanes; }
  // The integers that an integer type holds.
  int64_t min() const { return dl.code == kDLInt ? INT64_MIN >> (64 - dl.bits) : 0; }
  int64_t max() const {
    if (dl.code == kDLBool) return 1;
    return INT64_MAX >> (dl.code == kDLInt ? 64 - dl.bits : 63 - dl.bits);
  }
  bool is_float() const { return dl.code != kDLInt && dl.code != kDLUInt && dl.code != kDLBool; }
};

const DType* FindDType(const std::string& name);  // null when unknown
std::string DTypeNames();                         // for messages
std::string Describe(DLDataType dtype);           // "float32", "bfloat16", ...

// Whether elements of type `given` may be read as `wanted`: they are of that type, or storage of
// the same width that names none (unsigned integers, opaque bytes).
bool ReadsAs(DLDataType given, DLDataType wanted);
inline int BitsOf(DLDataType dtype) { return dtype.bits * dtype.lanes; }

// `value` rounded to `dtype` (to nearest, ties to even) where that is HALF, BFLOAT16 or FLOAT.
double RoundTo(const DType& dtype, double value);
// Whether StoreNumber knows how the type lies in memory: integers and IEEE floats, BFLOAT16.
bool IsStorable(const DType& dtype);
// Writes a number, already rounded to the type, to `data` as the type lies in memory; at most 8
// bytes. Floats are taken from `number`, integers from `integer`.
void StoreNumber(const DType& dtype, double number, int64_t integer, void* data);
// The number stored at `data`; false for a type without one (complex, opaque, 8-bit floats).
bool LoadNumber(DLDataType dtype, const void* data, double* number, int64_t* integer,
                bool* is_integer);

}  // namespace cudnn_aot
