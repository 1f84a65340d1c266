// Where the elements of a strided tensor lie. Extents and strides are in elements; everything
// throws Refusal (rule "arithmetic") where a number does not fit int64.
#pragma once

#include <cstdint>

#include "arithmetic.h"

namespace cudnn_aot {

// The bytes that elements occupy on either side of the address of element [0, ..., 0].
struct Reach {
  int64_t below = 0;  // before it: strides may run backwards
  int64_t above = 0;  // from it on

  int64_t bytes() const { return CheckedAdd(below, above); }
};

// {0, 0} for an empty tensor. Inline: every operand and every view of a call asks.
inline Reach ReachOf(const int64_t* dim, const int64_t* stride, int rank, int64_t element_bytes) {
  int64_t low = 0;
  int64_t high = 0;
  for (int axis = 0; axis < rank; ++axis) {
    if (dim[axis] <= 0) return {};
    int64_t last = CheckedMul(dim[axis] - 1, stride[axis]);
    int64_t& end = last < 0 ? low : high;
    end = CheckedAdd(end, last);
  }
  return {low == 0 ? 0 : CheckedMul(CheckedSub(0, low), element_bytes),
          CheckedMul(CheckedAdd(high, 1), element_bytes)};
}

// The bytes of F8_128x4 scales, one byte each: whole tiles of 128 rows by 4 scales. The last two
// axes are rows and the scales of a row, these along the axis of stride 1; the others are batches.
int64_t ReorderedBytes(const int64_t* dim, const int64_t* stride, int rank);

// Whether two index tuples may name one address: true unless the stride of each axis steps over
// all that the axes of smaller strides span. Interleaved layouts that happen not to collide, such
// as strides [3, 2] for extents [2, 3], are reported as overlapping.
bool MayOverlap(const int64_t* dim, const int64_t* stride, int rank);

}  // namespace cudnn_aot
