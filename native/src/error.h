// What C++ throws. Each kind is one code of the C interface and one class of `cudnn_aot.errors`.
#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>

namespace cudnn_aot {

// In the numbers of the public header (`cudnn_aot_code`).
enum class Code : int32_t {
  kSuccess,
  kUsage,
  kNotAStore,
  kStore,
  kDamaged,
  kNotInStore,
  kGraphNotSupported,
  kRequirement,
  kLaunch,
  kRefused,
  kInternal,
  kPin,
};

// "RefusedError": the class of `cudnn_aot.errors`; null for a code that has none.
const char* ClassOf(Code code);

// A launch table breaks its format. Becomes ValueError.
struct TableError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A call does not fit the plan; nothing was launched. Becomes errors.RefusedError.
struct Refusal : std::runtime_error {
  static constexpr int64_t kNoOperand = INT64_MIN;

  Refusal(std::string rule_id, int64_t operand_uid, const std::string& message)
      : std::runtime_error(message), rule(std::move(rule_id)), operand(operand_uid) {}

  std::string rule;
  int64_t operand;  // uid, or kNoOperand
};

// CUDA, a kernel or the dynamic loader failed. Becomes errors.LaunchError.
struct LaunchFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// This machine lacks something that the plan requires. Becomes errors.RequirementError.
struct RequirementFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A store, or a request for what lies in it, is not as it must be; `code` says how.
struct StoreFailure : std::runtime_error {
  StoreFailure(Code what, const std::string& message) : std::runtime_error(message), code(what) {}

  Code code;
};

// An error as a value: what callers are told, in whichever language.
struct ErrorValue {
  Code code = Code::kInternal;
  std::string message;  // one line
  std::string rule{};   // of a refusal
  int64_t operand = Refusal::kNoOperand;
};

ErrorValue ErrorOf(const std::exception_ptr& error);

}  // namespace cudnn_aot
