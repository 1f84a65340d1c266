// What C++ throws; the binding layer maps each kind to one Python class.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace cudnn_aot {

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

}  // namespace cudnn_aot
