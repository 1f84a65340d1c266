#include "value.h"

#include <algorithm>

#include "error.h"

namespace cudnn_aot {

const char* Value::KindName() const {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return "a boolean";
    case Kind::kInt:
      return "an integer";
    case Kind::kBigInt:
      return "an integer that does not fit int64";
    case Kind::kFloat:
      return "a number";
    case Kind::kString:
      return "a string";
    case Kind::kList:
      return "a list";
    case Kind::kObject:
      return "an object";
  }
  return "?";
}

const Value* Value::Find(std::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == key) return &items[i];
  }
  return nullptr;
}

void Reader::Fail(const std::string& message) const {
  throw TableError(place_.empty() ? message : place_ + ": " + message);
}

void Reader::Want(const char* what) const {
  if (value_->kind == Value::Kind::kBigInt) Fail(std::string("got ") + value_->KindName());
  Fail(std::string("got ") + value_->KindName() + ", want " + what);
}

const Value* Reader::Find(const char* field) const { return value_->Find(field); }

void Reader::Fields(std::initializer_list<const char*> required,
                    std::initializer_list<const char*> optional) const {
  if (value_->kind != Value::Kind::kObject) Want("an object");
  for (const char* field : required) {
    if (Find(field) == nullptr) Fail(std::string("field '") + field + "' is missing");
  }
  auto known = [](std::initializer_list<const char*> names, const std::string& key) {
    return std::any_of(names.begin(), names.end(), [&](const char* name) { return key == name; });
  };
  for (const std::string& key : value_->keys) {
    if (known(required, key) || known(optional, key)) continue;
    std::vector<std::string> names(required.begin(), required.end());
    names.insert(names.end(), optional.begin(), optional.end());
    Fail("unknown field '" + key + "', want " + Choices(names));
  }
}

bool Reader::Has(const char* field) const {
  const Value* found = Find(field);
  return found != nullptr && found->kind != Value::Kind::kNull;
}

Reader Reader::Field(const char* field) const {
  const Value* found = Find(field);
  if (found == nullptr) Fail(std::string("field '") + field + "' is missing");
  return Reader(*found, place_.empty() ? field : place_ + "." + field);
}

std::vector<Reader> Reader::Items() const {
  if (value_->kind != Value::Kind::kList) Want("a list");
  std::vector<Reader> out;
  out.reserve(value_->items.size());
  for (size_t i = 0; i < value_->items.size(); ++i) {
    out.emplace_back(value_->items[i], place_ + "[" + std::to_string(i) + "]");
  }
  return out;
}

std::vector<std::pair<std::string, Reader>> Reader::Members() const {
  if (value_->kind != Value::Kind::kObject) Want("an object");
  std::vector<std::pair<std::string, Reader>> out;
  out.reserve(value_->items.size());
  for (size_t i = 0; i < value_->items.size(); ++i) {
    out.emplace_back(value_->keys[i], Reader(value_->items[i], place_ + "." + value_->keys[i]));
  }
  return out;
}

bool Reader::Bool() const {
  if (value_->kind != Value::Kind::kBool) Want("true or false");
  return value_->boolean;
}

int64_t Reader::Int() const {
  if (value_->kind != Value::Kind::kInt) Want("an integer");
  return value_->integer;
}

int64_t Reader::IntIn(int64_t low, int64_t high) const {
  int64_t got = Int();
  if (got < low || got > high) {
    Fail("got " + std::to_string(got) + ", want " + std::to_string(low) + " to " +
         std::to_string(high));
  }
  return got;
}

double Reader::Number() const {
  if (value_->kind == Value::Kind::kInt) return static_cast<double>(value_->integer);
  if (value_->kind != Value::Kind::kFloat) Want("a number");
  return value_->number;
}

const std::string& Reader::String() const {
  if (value_->kind != Value::Kind::kString) Want("a string");
  return value_->string;
}

std::string Choices(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " or " : ", ";
    out += "'" + names[i] + "'";
  }
  return out;
}

}  // namespace cudnn_aot
