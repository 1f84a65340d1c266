// A plain JSON-like value, and a reader that fails with the place of what it read.
//
// `json` reads one from text; the binding layer turns Python dicts and lists into one.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace cudnn_aot {

struct Value {
  enum class Kind : uint8_t { kNull, kBool, kInt, kBigInt, kFloat, kString, kList, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;
  std::string string;             // of kBigInt, an integer beyond int64, its digits
  std::vector<std::string> keys;  // of an object, parallel to `items`
  std::vector<Value> items;       // of a list or an object

  const char* KindName() const;
  const Value* Find(std::string_view key) const;  // of an object; null if absent, or no object
};

// A value together with its place, e.g. "branches.tma.steps[1].args[0].dim[2]".
class Reader {
 public:
  Reader(const Value& value, std::string place) : value_(&value), place_(std::move(place)) {}

  const Value& value() const { return *value_; }
  const std::string& place() const { return place_; }

  [[noreturn]] void Fail(const std::string& message) const;

  // Fails unless this is an object whose fields all are in `required` or `optional`, with every
  // required one present.
  void Fields(std::initializer_list<const char*> required,
              std::initializer_list<const char*> optional = {}) const;
  bool Has(const char* field) const;  // present and not null
  Reader Field(const char* field) const;
  std::vector<Reader> Items() const;                            // of a list
  std::vector<std::pair<std::string, Reader>> Members() const;  // of an object
  bool Bool() const;
  int64_t Int() const;
  int64_t IntIn(int64_t low, int64_t high) const;
  double Number() const;
  const std::string& String() const;

 private:
  const Value* Find(const char* field) const;
  [[noreturn]] void Want(const char* what) const;

  const Value* value_;
  std::string place_;
};

// "'a', 'b' or 'c'", for messages.
std::string Choices(const std::vector<std::string>& names);

}  // namespace cudnn_aot
