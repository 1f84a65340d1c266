#include "elements.h"

#include <cmath>
#include <cstring>

namespace {

struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
};

constexpr uint8_t kFloat8E4M3 = 10;  // DLPack 1.1 has names for these two
constexpr uint8_t kFloat8E5M2 = 12;

// {0, 0} for what is no floating-point type.
FloatFormat FormatOf(DLDataType dtype) {
  switch (dtype.code) {
    case kDLBfloat:
      return {8, 7};
    case kFloat8E4M3:
      return {4, 3};
    case kFloat8E5M2:
      return {5, 2};
    case kDLFloat:
      return dtype.bits == 16   ? FloatFormat{5, 10}
             : dtype.bits == 32 ? FloatFormat{8, 23}
                                : FloatFormat{11, 52};
    default:
      return {0, 0};
  }
}

// The bits of a number that the format has exactly, as a normal one or zero.
uint64_t Encode(FloatFormat format, double number) {
  if (number == 0) return 0;
  int exponent = 0;
  double fraction = std::frexp(std::fabs(number), &exponent);  // 0.5 to 1
  auto biased = static_cast<uint64_t>(exponent - 1 + (1 << (format.exponent_bits - 1)) - 1);
  auto mantissa = static_cast<uint64_t>(std::ldexp(2 * fraction - 1, format.mantissa_bits));
  uint64_t sign = number < 0 ? 1 : 0;
  return (sign << format.exponent_bits | biased) << format.mantissa_bits | mantissa;
}

double Decode(FloatFormat format, uint64_t bits) {
  uint64_t mantissa = bits & ((uint64_t{1} << format.mantissa_bits) - 1);
  auto biased = static_cast<int>(bits >> format.mantissa_bits & ((1 << format.exponent_bits) - 1));
  int bias = (1 << (format.exponent_bits - 1)) - 1;
  bool is_negative = (bits >> (format.mantissa_bits + format.exponent_bits) & 1) != 0;
  double fraction = std::ldexp(static_cast<double>(mantissa), -format.mantissa_bits);
  double size =
      biased == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, biased - bias);
  return is_negative ? -size : size;
}

}  // namespace

int64_t ElementBytes(DLDataType dtype) { return dtype.bits * dtype.lanes / 8; }

std::vector<char> MakeElements(DLDataType dtype, int64_t count, uint32_t seed) {
  FloatFormat format = FormatOf(dtype);
  auto bytes = static_cast<size_t>(ElementBytes(dtype));
  std::vector<char> out(static_cast<size_t>(count) * bytes);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t mixed = (static_cast<uint32_t>(i) + seed * 977u) * 2654435761u;
    int64_t number = 1 + (mixed >> 29);
    if (dtype.code != kDLUInt && dtype.code != kDLBool && (mixed >> 28 & 1) != 0) number = -number;
    if (dtype.code == kDLBool) number &= 1;
    auto value = static_cast<uint64_t>(number);
    if (format.mantissa_bits != 0) value = Encode(format, static_cast<double>(number) / 8);
    std::memcpy(out.data() + static_cast<size_t>(i) * bytes, &value, bytes);  // little endian
  }
  return out;
}

double SumOf(DLDataType dtype, const std::vector<char>& elements) {
  FloatFormat format = FormatOf(dtype);
  auto bytes = static_cast<size_t>(ElementBytes(dtype));
  double sum = 0;
  for (size_t at = 0; at < elements.size(); at += bytes) {
    uint64_t bits = 0;
    std::memcpy(&bits, elements.data() + at, bytes);
    if (format.mantissa_bits != 0) {
      sum += Decode(format, bits);
    } else {
      int unused = 64 - dtype.bits;
      bool is_signed = dtype.code == kDLInt;
      sum += is_signed ? static_cast<double>(static_cast<int64_t>(bits << unused) >> unused)
                       : static_cast<double>(bits);
    }
  }
  return sum;
}
