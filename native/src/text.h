// Text in messages and file names.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cudnn_aot {

// The character at the start of `text` and the number of its bytes; 0 for bytes that are no UTF-8.
size_t Utf8Character(std::string_view text, unsigned* code);
bool IsUtf8(std::string_view text);

// 'text' with quotes, backslashes and control characters escaped, as Python's repr has it. (What is
// beyond ASCII stays as it is, also the few characters that repr holds to be unprintable.)
std::string Quoted(std::string_view text);

std::string Join(const std::vector<std::string>& parts, const char* between);

// At most three of `names` that are most like `name`, best first: difflib.get_close_matches with a
// cutoff of 0.4.
std::vector<std::string> Nearest(const std::string& name, const std::vector<std::string>& names);

}  // namespace cudnn_aot
