#include "layout.h"

#include <algorithm>
#include <cstdlib>

namespace cudnn_aot {
namespace {

// Takes axes one by one, inner ones first, while each steps over all of those before it.
class Nesting {
 public:
  bool Take(int64_t dim, int64_t stride) {
    int64_t step = stride < 0 ? CheckedSub(0, stride) : stride;
    if (step <= last_) return false;
    last_ = CheckedAdd(last_, CheckedMul(dim - 1, step));
    return true;
  }

 private:
  int64_t last_ = 0;  // offset of the farthest element
};

}  // namespace

int64_t ReorderedBytes(const int64_t* dim, const int64_t* stride, int rank) {
  bool by_column = stride[rank - 1] != 1 && stride[rank - 2] == 1;
  int scales = by_column ? rank - 2 : rank - 1;
  int rows = by_column ? rank - 1 : rank - 2;
  int64_t bytes = 1;
  for (int axis = 0; axis < rank; ++axis) {
    int64_t tile = axis == rows ? 128 : axis == scales ? 4 : 1;
    bytes = CheckedMul(bytes, CheckedMul(CeilDivPositive(dim[axis], tile), tile));
  }
  return bytes;
}

bool MayOverlap(const int64_t* dim, const int64_t* stride, int rank) {
  Nesting row_major;  // the usual order needs no sorting
  int axis = rank - 1;
  while (axis >= 0 && (dim[axis] == 1 || row_major.Take(dim[axis], stride[axis]))) --axis;
  if (axis < 0) return false;
  constexpr int kMaxAxes = 64;
  int order[kMaxAxes];
  int count = 0;
  for (axis = 0; axis < rank && count < kMaxAxes; ++axis) {
    if (dim[axis] == 0) return false;
    if (dim[axis] != 1) order[count++] = axis;
  }
  std::sort(order, order + count,
            [&](int a, int b) { return std::abs(stride[a]) < std::abs(stride[b]); });
  Nesting nesting;
  return !std::all_of(order, order + count, [&](int i) { return nesting.Take(dim[i], stride[i]); });
}

}  // namespace cudnn_aot
