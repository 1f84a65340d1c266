#include "json.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "text.h"

namespace cudnn_aot {
namespace {

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr int kMaxDepth = 128;

// ---- Reading --------------------------------------------------------------------------------

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {
    if (text.size() > kMaxBytes) {
      Fail("got " + std::to_string(text.size()) + " bytes, want at most " +
           std::to_string(kMaxBytes));
    }
  }

  Value Run() {
    Value out;
    SkipBlanks();
    ParseValue(0, &out);
    SkipBlanks();
    if (at_ != text_.size()) Fail("got more after the value, want its end");
    return out;
  }

 private:
  [[noreturn]] void Fail(const std::string& message) const {
    throw JsonError("byte " + std::to_string(at_) + ": " + message);
  }

  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void SkipBlanks() {
    auto is_blank = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; };
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  }
  void TakeWord(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) Fail("got no JSON value");
    at_ += word.size();
  }

  void ParseValue(int depth, Value* out);
  void ParseObject(int depth, Value* out);
  void ParseList(int depth, Value* out);
  void ParseNumber(Value* out);
  void ParseString(std::string* out);
  void ParseEscape(std::string* out);
  unsigned ParseHex4();
  void TakeCharacter(std::string* out);

  std::string_view text_;
  size_t at_ = 0;
};

void Parser::ParseValue(int depth, Value* out) {
  if (depth > kMaxDepth) Fail("nested deeper than " + std::to_string(kMaxDepth));
  switch (Peek()) {
    case '{':
      return ParseObject(depth, out);
    case '[':
      return ParseList(depth, out);
    case '"':
      out->kind = Value::Kind::kString;
      return ParseString(&out->string);
    case 't':
      out->boolean = true;
      [[fallthrough]];
    case 'f':
      out->kind = Value::Kind::kBool;
      return TakeWord(out->boolean ? "true" : "false");
    case 'n':
      return TakeWord("null");
    default:
      return ParseNumber(out);
  }
}

// One that is there twice, or null. Sorted fields, as the store's documents have them, take one
// pass.
const std::string* Repeated(const std::vector<std::string>& keys) {
  auto in_order = [](const auto& a, const auto& b) { return *a < *b; };
  std::vector<const std::string*> sorted;
  sorted.reserve(keys.size());
  for (const std::string& key : keys) sorted.push_back(&key);
  if (!std::is_sorted(sorted.begin(), sorted.end(), in_order)) {
    std::sort(sorted.begin(), sorted.end(), in_order);
  }
  auto equal = [](const auto& a, const auto& b) { return *a == *b; };
  auto found = std::adjacent_find(sorted.begin(), sorted.end(), equal);
  return found == sorted.end() ? nullptr : *found;
}

void Parser::ParseObject(int depth, Value* out) {
  out->kind = Value::Kind::kObject;
  ++at_;
  SkipBlanks();
  if (Take('}')) return;
  do {
    SkipBlanks();
    if (Peek() != '"') Fail("got no field name");
    ParseString(&out->keys.emplace_back());
    SkipBlanks();
    if (!Take(':')) Fail("got no ':' after a field name");
    SkipBlanks();
    ParseValue(depth + 1, &out->items.emplace_back());
    SkipBlanks();
  } while (Take(','));
  if (!Take('}')) Fail("got no ',' or '}' after a field");
  if (const std::string* twice = Repeated(out->keys)) Fail("got the field '" + *twice + "' twice");
}

void Parser::ParseList(int depth, Value* out) {
  out->kind = Value::Kind::kList;
  ++at_;
  SkipBlanks();
  if (Take(']')) return;
  do {
    SkipBlanks();
    ParseValue(depth + 1, &out->items.emplace_back());
    SkipBlanks();
  } while (Take(','));
  if (!Take(']')) Fail("got no ',' or ']' after an item");
}

void Parser::ParseNumber(Value* out) {
  size_t start = at_;
  auto digits = [&] {
    size_t first = at_;
    while (Peek() >= '0' && Peek() <= '9') ++at_;
    if (at_ == first) Fail("got no JSON value");
  };
  Take('-');
  if (!Take('0')) digits();
  bool is_integer = true;
  if (Take('.')) {
    is_integer = false;
    digits();
  }
  if (Peek() == 'e' || Peek() == 'E') {
    is_integer = false;
    ++at_;
    if (!Take('+')) Take('-');
    digits();
  }
  std::string text(text_.substr(start, at_ - start));
  if (!is_integer) {
    out->kind = Value::Kind::kFloat;
    // strtod would ask the locale what a decimal point is.
    std::from_chars_result read =
        std::from_chars(text.data(), text.data() + text.size(), out->number);
    if (read.ec != std::errc()) Fail("got the number " + text + ", want one that a double holds");
    return;
  }
  out->kind = Value::Kind::kInt;
  std::from_chars_result read =
      std::from_chars(text.data(), text.data() + text.size(), out->integer);
  if (read.ec == std::errc::result_out_of_range) {
    out->kind = Value::Kind::kBigInt;
    out->string = std::move(text);
  }
}

// Whether a character of a string stands for itself, and is one byte.
bool IsPlain(char c) {
  return c != '"' && c != '\\' && c >= ' ' && static_cast<unsigned char>(c) < 0x80;
}

void Parser::ParseString(std::string* out) {
  ++at_;
  while (true) {
    if (at_ == text_.size()) Fail("got a string without an end");
    auto c = static_cast<unsigned char>(text_[at_]);
    if (c == '"') break;
    if (c < ' ') Fail("got a control character in a string, want it escaped");
    if (c == '\\') {
      ParseEscape(out);
    } else if (c < 0x80) {
      size_t start = at_;
      while (at_ < text_.size() && IsPlain(text_[at_])) ++at_;
      out->append(text_, start, at_ - start);
    } else {
      TakeCharacter(out);
    }
  }
  ++at_;
}

void AppendUtf8(unsigned code, std::string* out) {
  if (code < 0x80) {
    *out += static_cast<char>(code);
    return;
  }
  int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;  // bytes after the first
  constexpr unsigned kFirst[] = {0, 0xC0, 0xE0, 0xF0};
  *out += static_cast<char>(kFirst[more] | code >> 6 * more);
  while (more-- > 0) *out += static_cast<char>(0x80 | (code >> 6 * more & 0x3F));
}

bool IsHighSurrogate(unsigned code) { return code >= 0xD800 && code < 0xDC00; }
bool IsLowSurrogate(unsigned code) { return code >= 0xDC00 && code < 0xE000; }

unsigned Parser::ParseHex4() {
  unsigned code = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    char c = Peek();
    bool is_letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (!is_letter && (c < '0' || c > '9')) Fail("got no four hex digits after \\u");
    code = code << 4 | static_cast<unsigned>(is_letter ? (c | 0x20) - 'a' + 10 : c - '0');
  }
  return code;
}

void Parser::ParseEscape(std::string* out) {
  ++at_;
  constexpr std::string_view kNamed = "\"\\/bfnrt";
  constexpr char kMeaning[] = "\"\\/\b\f\n\r\t";
  char c = Peek();
  size_t named = c == '\0' ? kNamed.npos : kNamed.find(c);
  if (named != kNamed.npos) {
    ++at_;
    *out += kMeaning[named];
    return;
  }
  if (c != 'u') Fail("got an unknown escape");
  ++at_;
  unsigned code = ParseHex4();
  if (IsHighSurrogate(code) && text_.substr(at_, 2) == "\\u") {
    at_ += 2;
    unsigned low = ParseHex4();
    if (!IsLowSurrogate(low)) Fail("got half of a surrogate pair");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  } else if (IsHighSurrogate(code) || IsLowSurrogate(code)) {
    Fail("got half of a surrogate pair");
  }
  AppendUtf8(code, out);
}

// One character of more than one byte.
void Parser::TakeCharacter(std::string* out) {
  unsigned code = 0;
  size_t size = Utf8Character(text_.substr(at_), &code);
  if (size == 0) Fail("got bytes that are no UTF-8");
  out->append(text_.substr(at_, size));
  at_ += size;
}

// ---- Writing --------------------------------------------------------------------------------

void WriteString(const std::string& text, std::string* out) {
  auto unit = [&](unsigned code) {
    *out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) *out += "0123456789abcdef"[code >> shift & 15];
  };
  *out += '"';
  for (size_t at = 0; at < text.size();) {
    size_t start = at;
    while (at < text.size() && IsPlain(text[at]) && text[at] != 0x7F) ++at;
    out->append(text, start, at - start);
    if (at == text.size()) break;
    unsigned code = 0;
    at += std::max<size_t>(Utf8Character(std::string_view(text).substr(at), &code), 1);
    constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
    size_t named = code < 0x80 ? kEscaped.find(static_cast<char>(code)) : kEscaped.npos;
    if (named != kEscaped.npos) {
      *out += '\\';
      *out += "\"\\bfnrt"[named];
    } else if (code >= ' ' && code <= '~') {
      *out += static_cast<char>(code);
    } else if (code < 0x10000) {
      unit(code);
    } else {
      unit(0xD800 + ((code - 0x10000) >> 10));
      unit(0xDC00 + ((code - 0x10000) & 0x3FF));
    }
  }
  *out += '"';
}

// As Python's repr: the shortest digits that read back, with an exponent below 1e-4 and from 1e16.
void WriteNumber(double number, std::string* out) {
  char text[32];
  auto format = std::chars_format::scientific;
  char* end = std::to_chars(text, text + sizeof text - 1, number, format).ptr;
  *end = '\0';
  int exponent = std::atoi(std::strchr(text, 'e') + 1);
  if (exponent < -4 || exponent >= 16) {
    out->append(text, end);
    return;
  }
  end = std::to_chars(text, text + sizeof text, number, std::chars_format::fixed).ptr;
  out->append(text, end);
  if (std::find(text, end, '.') == end) *out += ".0";
}

void Write(const Value& value, const char* without, std::string* out) {
  switch (value.kind) {
    case Value::Kind::kNull:
      *out += "null";
      return;
    case Value::Kind::kBool:
      *out += value.boolean ? "true" : "false";
      return;
    case Value::Kind::kInt:
      *out += std::to_string(value.integer);
      return;
    case Value::Kind::kBigInt:
      *out += value.string;
      return;
    case Value::Kind::kFloat:
      return WriteNumber(value.number, out);
    case Value::Kind::kString:
      return WriteString(value.string, out);
    case Value::Kind::kList:
    case Value::Kind::kObject:
      break;
  }
  bool is_object = value.kind == Value::Kind::kObject;
  std::vector<size_t> order(value.items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (is_object && !std::is_sorted(value.keys.begin(), value.keys.end())) {
    // Bytes of UTF-8 are in the order of the characters.
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return value.keys[a] < value.keys[b]; });
  }
  *out += is_object ? '{' : '[';
  bool is_first = true;
  for (size_t i : order) {
    if (is_object && without != nullptr && value.keys[i] == without) continue;
    if (!is_first) *out += ',';
    is_first = false;
    if (is_object) {
      WriteString(value.keys[i], out);
      *out += ':';
    }
    Write(value.items[i], nullptr, out);
  }
  *out += is_object ? '}' : ']';
}

}  // namespace

Value ParseJson(std::string_view text) { return Parser(text).Run(); }

std::string CanonicalJson(const Value& value, const char* without) {
  std::string out;
  Write(value, without, &out);
  return out;
}

}  // namespace cudnn_aot
