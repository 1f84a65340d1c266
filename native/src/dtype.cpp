#include "dtype.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "value.h"

namespace cudnn_aot {
namespace {

const DType kDTypes[] = {
    {"FLOAT", {kDLFloat, 32, 1}},
    {"DOUBLE", {kDLFloat, 64, 1}},
    {"HALF", {kDLFloat, 16, 1}},
    {"BFLOAT16", {kDLBfloat, 16, 1}},
    {"INT8", {kDLInt, 8, 1}},
    {"INT32", {kDLInt, 32, 1}},
    {"INT64", {kDLInt, 64, 1}},
    {"UINT8", {kDLUInt, 8, 1}},
    {"BOOLEAN", {kDLBool, 8, 1}},
    {"FP8_E4M3", {kDLFloat8E4M3, 8, 1}},
    {"FP8_E5M2", {kDLFloat8E5M2, 8, 1}},
    {"FP8_E8M0", {kDLFloat8E8M0, 8, 1}},
    {"FP4_E2M1", {kDLFloat4E2M1, 4, 2}},
    {"INT4", {kDLInt, 4, 2}},
};

// Rounds to a binary format with `mantissa` stored bits and the given exponent range.
double RoundBinary(double value, int mantissa, int min_exponent, double largest) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent = 0;
  std::frexp(value, &exponent);  // |value| in [2^(exponent-1), 2^exponent)
  int ulp = std::max(exponent - 1, min_exponent) - mantissa;
  double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -ulp)), ulp);
  return std::fabs(rounded) > largest ? std::copysign(INFINITY, value) : rounded;
}

float HalfToFloat(uint16_t bits) {
  int exponent = (bits >> 10) & 31;
  int fraction = bits & 1023;
  double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                     : exponent == 31 ? (fraction != 0 ? NAN : INFINITY)
                                      : std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

// `value` is a number that HALF holds.
uint16_t FloatToHalf(double value) {
  uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  double magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (std::isinf(value)) return sign | 0x7c00;
  if (magnitude < std::ldexp(1.0, -14)) {
    return sign | static_cast<uint16_t>(std::ldexp(magnitude, 24));
  }
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude in [2^(exponent-1), 2^exponent)
  auto fraction = static_cast<uint16_t>(std::ldexp(magnitude, 11 - exponent) - 1024);
  return sign | static_cast<uint16_t>((exponent + 14) << 10) | fraction;
}

template <typename T>
T Load(const void* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

}  // namespace

const DType* FindDType(const std::string& name) {
  for (const DType& dtype : kDTypes) {
    if (name == dtype.name) return &dtype;
  }
  return nullptr;
}

std::string DTypeNames() {
  std::vector<std::string> names;
  for (const DType& dtype : kDTypes) names.emplace_back(dtype.name);
  return Choices(names);
}

std::string Describe(DLDataType dtype) {
  std::string lanes = dtype.lanes == 1 ? "" : "x" + std::to_string(dtype.lanes);
  switch (dtype.code) {
    case kDLInt:
      return "int" + std::to_string(dtype.bits) + lanes;
    case kDLUInt:
      return "uint" + std::to_string(dtype.bits) + lanes;
    case kDLFloat:
      return "float" + std::to_string(dtype.bits) + lanes;
    case kDLBfloat:
      return "bfloat" + std::to_string(dtype.bits) + lanes;
    case kDLComplex:
      return "complex" + std::to_string(dtype.bits) + lanes;
    case kDLBool:
      return "bool";
    case kDLFloat8E4M3:
      return "float8_e4m3fn";
    case kDLFloat8E5M2:
      return "float8_e5m2";
    case kDLFloat8E8M0:
      return "float8_e8m0fnu";
    case kDLFloat4E2M1:
      return "float4_e2m1fn" + (dtype.lanes == 1 ? lanes : "_" + lanes);
    default:
      return std::to_string(dtype.bits * dtype.lanes) + "-bit opaque";
  }
}

bool ReadsAs(DLDataType given, DLDataType wanted) {
  if (given.code == wanted.code && given.bits == wanted.bits && given.lanes == wanted.lanes) {
    return true;
  }
  return (given.code == kDLUInt || given.code == kDLOpaqueHandle) &&
         BitsOf(given) == BitsOf(wanted);
}

double RoundTo(const DType& dtype, double value) {
  if (dtype.dl.code == kDLFloat && dtype.dl.bits == 32) return static_cast<float>(value);
  if (dtype.dl.code == kDLFloat && dtype.dl.bits == 16) {
    return RoundBinary(value, 10, -14, 65504.0);
  }
  if (dtype.dl.code == kDLBfloat) {
    return RoundBinary(value, 7, -126, std::ldexp(255.0, 120));
  }
  return value;
}

bool IsStorable(const DType& dtype) {
  return !dtype.is_float() || dtype.dl.code == kDLFloat || dtype.dl.code == kDLBfloat;
}

void StoreNumber(const DType& dtype, double number, int64_t integer, void* data) {
  if (!dtype.is_float()) {
    std::memcpy(data, &integer, static_cast<size_t>(dtype.bytes()));  // little endian
  } else if (dtype.dl.bits == 64) {
    std::memcpy(data, &number, sizeof number);
  } else if (dtype.dl.bits == 32) {
    auto narrow = static_cast<float>(number);
    std::memcpy(data, &narrow, sizeof narrow);
  } else if (dtype.dl.code == kDLBfloat) {
    auto narrow = static_cast<float>(number);
    std::memcpy(data, reinterpret_cast<const char*>(&narrow) + 2, 2);  // its upper half
  } else {
    uint16_t bits = FloatToHalf(number);
    std::memcpy(data, &bits, sizeof bits);
  }
}

bool LoadNumber(DLDataType dtype, const void* data, double* number, int64_t* integer,
                bool* is_integer) {
  *is_integer = dtype.code == kDLInt || dtype.code == kDLUInt || dtype.code == kDLBool;
  if (dtype.lanes != 1) return false;
  switch (dtype.code) {
    case kDLInt:
      switch (dtype.bits) {
        case 8:
          *integer = Load<int8_t>(data);
          break;
        case 16:
          *integer = Load<int16_t>(data);
          break;
        case 32:
          *integer = Load<int32_t>(data);
          break;
        case 64:
          *integer = Load<int64_t>(data);
          break;
        default:
          return false;
      }
      break;
    case kDLBool:
    case kDLUInt:
      switch (dtype.bits) {
        case 8:
          *integer = Load<uint8_t>(data);
          break;
        case 16:
          *integer = Load<uint16_t>(data);
          break;
        case 32:
          *integer = Load<uint32_t>(data);
          break;
        case 64: {
          uint64_t wide = Load<uint64_t>(data);
          if (wide > INT64_MAX) return false;
          *integer = static_cast<int64_t>(wide);
          break;
        }
        default:
          return false;
      }
      break;
    case kDLFloat:
      switch (dtype.bits) {
        case 16:
          *number = HalfToFloat(Load<uint16_t>(data));
          break;
        case 32:
          *number = Load<float>(data);
          break;
        case 64:
          *number = Load<double>(data);
          break;
        default:
          return false;
      }
      return true;
    case kDLBfloat: {
      uint32_t bits = static_cast<uint32_t>(Load<uint16_t>(data)) << 16;
      *number = Load<float>(&bits);
      return true;
    }
    default:
      return false;
  }
  *number = static_cast<double>(*integer);
  return true;
}

}  // namespace cudnn_aot
