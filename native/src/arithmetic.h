// Checked int64 arithmetic. Overflow and bad divisors throw Refusal (rule "arithmetic").
#pragma once

#include <cstdint>
#include <string>

#include "error.h"

namespace cudnn_aot {

[[noreturn]] inline void RefuseOverflow(int64_t a, const char* sign, int64_t b) {
  throw Refusal("arithmetic", Refusal::kNoOperand,
                "got " + std::to_string(a) + " " + sign + " " + std::to_string(b) +
                    ", want a result that fits int64");
}

[[noreturn]] inline void RefuseDivisor(int64_t divisor) {
  throw Refusal("arithmetic", Refusal::kNoOperand,
                "got divisor " + std::to_string(divisor) + ", want a positive one");
}

inline int64_t CheckedAdd(int64_t a, int64_t b) {
  int64_t out;
  if (__builtin_add_overflow(a, b, &out)) RefuseOverflow(a, "+", b);
  return out;
}

inline int64_t CheckedSub(int64_t a, int64_t b) {
  int64_t out;
  if (__builtin_sub_overflow(a, b, &out)) RefuseOverflow(a, "-", b);
  return out;
}

inline int64_t CheckedMul(int64_t a, int64_t b) {
  int64_t out;
  if (__builtin_mul_overflow(a, b, &out)) RefuseOverflow(a, "*", b);
  return out;
}

// Divisors are positive, so neither can overflow.
inline int64_t FloorDivPositive(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
inline int64_t CeilDivPositive(int64_t a, int64_t b) { return a / b + (a % b > 0 ? 1 : 0); }
inline int64_t ModPositive(int64_t a, int64_t b) {
  int64_t rest = a % b;
  return rest < 0 ? rest + b : rest;
}

}  // namespace cudnn_aot
