#include "text.h"

#include <algorithm>
#include <map>
#include <utility>

namespace cudnn_aot {
namespace {

using Characters = std::vector<unsigned>;

Characters CharactersOf(std::string_view text) {
  Characters out;
  while (!text.empty()) {
    unsigned code = 0;
    text.remove_prefix(std::max<size_t>(Utf8Character(text, &code), 1));
    out.push_back(code);
  }
  return out;
}

// The places of each character of `b`. In a long text those of very common ones count for nothing.
class Places {
 public:
  explicit Places(const Characters& b) {
    for (size_t i = 0; i < b.size(); ++i) places_[b[i]].push_back(i);
    constexpr size_t kLong = 200;
    if (b.size() < kLong) return;
    for (auto at = places_.begin(); at != places_.end();) {
      at = at->second.size() > b.size() / 100 + 1 ? places_.erase(at) : std::next(at);
    }
  }
  const std::vector<size_t>& Of(unsigned character) const {
    static const std::vector<size_t> kNone;
    auto found = places_.find(character);
    return found == places_.end() ? kNone : found->second;
  }

 private:
  std::map<unsigned, std::vector<size_t>> places_;
};

struct Range {
  size_t a_begin, a_end, b_begin, b_end;
};

// Characters of the longest common block of two ranges and, recursively, of those left and right of
// it: Ratcliff and Obershelp's measure.
size_t CommonCharacters(const Characters& a, const Characters& b, const Places& places) {
  size_t total = 0;
  std::vector<Range> pending = {{0, a.size(), 0, b.size()}};
  while (!pending.empty()) {
    Range range = pending.back();
    pending.pop_back();
    size_t best_a = range.a_begin, best_b = range.b_begin, size = 0;
    std::map<size_t, size_t> lengths;  // of the block that ends at a place of b
    for (size_t i = range.a_begin; i < range.a_end; ++i) {
      std::map<size_t, size_t> next;
      for (size_t j : places.Of(a[i])) {
        if (j < range.b_begin || j >= range.b_end) continue;
        auto before = j == 0 ? lengths.end() : lengths.find(j - 1);
        size_t length = next[j] = (before == lengths.end() ? 0 : before->second) + 1;
        if (length > size) {
          best_a = i + 1 - length;
          best_b = j + 1 - length;
          size = length;
        }
      }
      lengths = std::move(next);
    }
    // What was left out as common still extends a block that was found, or makes one of its own.
    while (best_a > range.a_begin && best_b > range.b_begin && a[best_a - 1] == b[best_b - 1]) {
      --best_a, --best_b, ++size;
    }
    while (best_a + size < range.a_end && best_b + size < range.b_end &&
           a[best_a + size] == b[best_b + size]) {
      ++size;
    }
    if (size == 0) continue;
    total += size;
    pending.push_back({range.a_begin, best_a, range.b_begin, best_b});
    pending.push_back({best_a + size, range.a_end, best_b + size, range.b_end});
  }
  return total;
}

}  // namespace

size_t Utf8Character(std::string_view text, unsigned* code) {
  if (text.empty()) return 0;
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  *code = byte(0);
  if (*code < 0x80) return 1;
  size_t size = *code >= 0xF0 ? 4 : *code >= 0xE0 ? 3 : 2;
  if (*code < 0xC2 || *code > 0xF4 || text.size() < size) return 0;
  *code &= 0x7Fu >> size;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    *code = *code << 6 | (byte(i) & 0x3F);
  }
  constexpr unsigned kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  bool is_surrogate = *code >= 0xD800 && *code < 0xE000;
  return *code < kLeast[size] || *code > 0x10FFFF || is_surrogate ? 0 : size;
}

bool IsUtf8(std::string_view text) {
  unsigned code = 0;
  while (!text.empty()) {
    size_t size = Utf8Character(text, &code);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::string Quoted(std::string_view text) {
  bool has_single = text.find('\'') != text.npos;
  char quote = has_single && text.find('"') == text.npos ? '"' : '\'';
  std::string out(1, quote);
  for (char c : text) {
    auto code = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += '\\';
      out += c == '\n' ? 'n' : c == '\r' ? 'r' : 't';
    } else if (code < ' ' || code == 0x7F) {
      out += "\\x";
      out += "0123456789abcdef"[code >> 4];
      out += "0123456789abcdef"[code & 15];
    } else {
      out += c;
    }
  }
  return out + quote;
}

std::string Join(const std::vector<std::string>& parts, const char* between) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) out += (i == 0 ? "" : between) + parts[i];
  return out;
}

std::vector<std::string> Nearest(const std::string& name, const std::vector<std::string>& names) {
  constexpr double kCutoff = 0.4;
  constexpr size_t kMost = 3;
  Characters b = CharactersOf(name);
  Places places(b);
  std::vector<std::pair<double, std::string>> scored;
  for (const std::string& candidate : names) {
    Characters a = CharactersOf(candidate);
    size_t both = a.size() + b.size();
    double ratio = both == 0 ? 1 : 2.0 * CommonCharacters(a, b, places) / both;
    if (ratio >= kCutoff) scored.emplace_back(ratio, candidate);
  }
  std::sort(scored.rbegin(), scored.rend());
  std::vector<std::string> out;
  for (size_t i = 0; i < std::min(kMost, scored.size()); ++i) {
    out.push_back(std::move(scored[i].second));
  }
  return out;
}

}  // namespace cudnn_aot
