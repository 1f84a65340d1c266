// SHA-256, by which a store names its bytes.
#pragma once

#include <string>
#include <string_view>

namespace cudnn_aot {

std::string Sha256Hex(std::string_view bytes);  // 64 hex digits, lower case

}  // namespace cudnn_aot
