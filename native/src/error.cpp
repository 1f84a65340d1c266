#include "error.h"

#include <new>

namespace cudnn_aot {

const char* ClassOf(Code code) {
  switch (code) {
    case Code::kUsage:
      return "UsageError";
    case Code::kNotAStore:
      return "NotAStoreError";
    case Code::kStore:
      return "StoreError";
    case Code::kDamaged:
      return "DamagedError";
    case Code::kNotInStore:
      return "NotInStoreError";
    case Code::kGraphNotSupported:
      return "cudnnGraphNotSupportedError";
    case Code::kRequirement:
      return "RequirementError";
    case Code::kLaunch:
      return "LaunchError";
    case Code::kRefused:
      return "RefusedError";
    case Code::kPin:
      return "PinError";
    case Code::kSuccess:
    case Code::kInternal:
      break;
  }
  return nullptr;
}

ErrorValue ErrorOf(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Refusal& e) {
    return {Code::kRefused, e.what() + (" (rule " + e.rule + ")"), e.rule, e.operand};
  } catch (const LaunchFailure& e) {
    return {Code::kLaunch, e.what()};
  } catch (const RequirementFailure& e) {
    return {Code::kRequirement, e.what()};
  } catch (const StoreFailure& e) {
    return {e.code, e.what()};
  } catch (const std::exception& e) {
    return {Code::kInternal, e.what()};
  } catch (...) {
    return {Code::kInternal, "an exception of another library"};
  }
}

}  // namespace cudnn_aot
