// Elements of tensors as numbers, for data that any program can make again.
#pragma once

#include <cstdint>
#include <vector>

#include "cudnn_aot.h"

int64_t ElementBytes(DLDataType dtype);

// Elements the first at index 0: 1/8 to 1, of either sign, which every type of numbers has exactly;
// of integer types -8 to 8, of unsigned ones 1 to 8. The same for the same `seed` everywhere.
std::vector<char> MakeElements(DLDataType dtype, int64_t count, uint32_t seed);

double SumOf(DLDataType dtype, const std::vector<char>& elements);
