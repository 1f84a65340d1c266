// What a caller binds to operands: tensors, the numbers in them, and names.
#pragma once

#include <cstdint>
#include <string>

#include "error.h"
#include "pack.h"

namespace cudnn_aot {

// What an object is for: how messages call it, and the operand that a refusal is about.
struct Role {
  const char* name;
  int64_t operand = Refusal::kNoOperand;
};

// "operand 1 'A': got 2.5, want ..."
[[noreturn]] void RefuseObject(const char* rule, const Role& role, const std::string& got,
                               const std::string& want);

void DescribeTensor(const DLTensor& tensor, Buffer* out);

// The number in a host buffer of one element; where the element has no number type of its own
// (uint16 for BFLOAT16), `dtype` says what the bits are. Throws Refusal.
void LoadElement(const Buffer& buffer, const DType& dtype, const Role& role, Buffer* out);

// The operand of that name. Refuses one that none or several have ("name").
int FindNamed(const Table& table, const std::string& name);

}  // namespace cudnn_aot
