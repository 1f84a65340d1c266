// JSON text to a Value and back, as the store's documents are written: strictly, and canonically.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "value.h"

namespace cudnn_aot {

// The text is not what ParseJson takes; the message says where and why.
struct JsonError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One JSON text, as RFC 8259 has it and nothing more: UTF-8, no repeated field, no lone surrogate,
// no number that is not finite, nesting to 128 levels, 64 MiB. An integer beyond int64 becomes
// kBigInt. Throws JsonError.
Value ParseJson(std::string_view text);

// Sorted fields, no blanks, ASCII, the shortest number that reads back: byte for byte what
// `cache.canonical` writes for the value, without the top-level field `without` unless null.
std::string CanonicalJson(const Value& value, const char* without = nullptr);

}  // namespace cudnn_aot
