#include "launch_template.h"

#include <cstring>
#include <map>
#include <mutex>

#include "cuda.h"

namespace cudnn_aot {
namespace {

constexpr int kInvalidValue = 1;
constexpr int kNotSupported = 801;

using LaunchKernel = int (*)(const LaunchConfig* config, const void* function, void** params,
                             void** extra);

struct Driver {
  LaunchKernel launch;
  int (*get_param_info)(const void* kernel, size_t index, size_t* offset, size_t* size);
  int (*get_function)(void** function, const void* kernel);
};

const Driver& TheDriver() {
  static const Driver driver{
      reinterpret_cast<LaunchKernel>(cuda::FindDriverFunction("cuLaunchKernelEx")),
      reinterpret_cast<decltype(Driver::get_param_info)>(
          cuda::FindDriverFunction("cuKernelGetParamInfo")),
      reinterpret_cast<decltype(Driver::get_function)>(
          cuda::FindDriverFunction("cuKernelGetFunction")),
  };
  return driver;
}

thread_local Recording* recording = nullptr;

struct Attribute {  // CUlaunchAttribute
  uint32_t id;
  uint32_t padding;
  char value[64];
};

// Bytes of an attribute's value; what follows them is not written by callers. 0: not known here.
size_t ValueBytes(uint32_t id) {
  switch (id) {
    case 2:  // cooperative
    case 5:  // cluster scheduling policy
    case 6:  // programmatic stream serialization
    case 8:  // priority
      return 4;
    case 4:  // cluster dimension
      return 12;
    default:
      return 0;
  }
}

bool CopyAttributes(const LaunchConfig& config, std::string* out) {
  const auto* given = static_cast<const Attribute*>(config.attributes);
  for (uint32_t i = 0; i < config.num_attributes; ++i) {
    Attribute attribute{};
    attribute.id = given[i].id;
    size_t bytes = ValueBytes(attribute.id);
    if (bytes == 0) return false;
    std::memcpy(attribute.value, given[i].value, bytes);
    out->append(reinterpret_cast<const char*>(&attribute), sizeof attribute);
  }
  return true;
}

struct Param {
  size_t offset;
  size_t size;
};

// Of a kernel; empty where the driver does not tell. Asked once, since each question costs as much
// as a call of the host function; a kernel's handle is good for the life of the process.
const std::vector<Param>& ParamsOf(const void* kernel) {
  static std::mutex mutex;
  static auto* known = new std::map<const void*, std::vector<Param>>();
  std::lock_guard<std::mutex> lock(mutex);
  auto [at, is_new] = known->try_emplace(kernel);
  std::vector<Param>& params = at->second;
  auto ask = TheDriver().get_param_info;
  if (!is_new || ask == nullptr) return params;
  Param param{};
  int error = 0;
  while ((error = ask(kernel, params.size(), &param.offset, &param.size)) == 0) {
    params.push_back(param);
  }
  if (error != kInvalidValue) params.clear();  // not the end of them
  return params;
}

bool CopyParams(const void* kernel, void* const* params, std::string* out) {
  const std::vector<Param>& each = ParamsOf(kernel);
  if (each.empty() || params == nullptr) return false;
  for (size_t i = 0; i < each.size(); ++i) {
    size_t end = each[i].offset + each[i].size;
    if (end > LaunchTemplate::kMaxParams) return false;
    out->resize(end);
    std::memcpy(out->data() + each[i].offset, params[i], each[i].size);
  }
  return true;
}

// The config as bytes that can be compared: without stream and pointers.
bool SameShape(const Recorded& a, const Recorded& b) {
  return a.kernel == b.kernel && a.attributes == b.attributes &&
         a.params.size() == b.params.size() &&
         std::memcmp(a.config.grid, b.config.grid, sizeof a.config.grid) == 0 &&
         std::memcmp(a.config.block, b.config.block, sizeof a.config.block) == 0 &&
         a.config.smem_bytes == b.config.smem_bytes;
}

uintptr_t WordAt(const std::string& params, size_t offset) {
  uintptr_t word = 0;
  std::memcpy(&word, params.data() + offset, sizeof word);
  return word;
}

// The base that the word at `offset` follows in every probe, or -1.
int FollowedBase(const std::vector<LaunchTemplate::Probe>& probes, size_t offset) {
  const LaunchTemplate::Probe& first = probes.front();
  for (size_t base = 0; base < first.bases.size(); ++base) {
    uintptr_t delta = WordAt(first.launch.params, offset) - first.bases[base];
    bool follows = true;
    for (const LaunchTemplate::Probe& probe : probes) {
      follows = follows && WordAt(probe.launch.params, offset) - probe.bases[base] == delta;
    }
    if (follows) return static_cast<int>(base);
  }
  return -1;
}

}  // namespace

int LaunchHook(const LaunchConfig* config, const void* kernel, void** params, void** extra) {
  if (recording != nullptr) {
    Recorded& launch = recording->launch_;
    ++recording->count_;
    launch = Recorded{};
    launch.kernel = kernel;
    launch.config = *config;
    recording->complete_ = recording->complete_ && CopyAttributes(*config, &launch.attributes) &&
                           CopyParams(kernel, params, &launch.params);
    return 0;
  }
  LaunchKernel launch = TheDriver().launch;
  return launch == nullptr ? kNotSupported : launch(config, kernel, params, extra);
}

Recording::Recording() { recording = this; }
Recording::~Recording() { recording = nullptr; }

std::unique_ptr<const LaunchTemplate> LaunchTemplate::Learn(const std::vector<Probe>& probes) {
  auto out = std::make_unique<LaunchTemplate>();
  out->launch_ = probes.front().launch;
  const std::string& params = out->launch_.params;
  for (const Probe& probe : probes) {
    if (!SameShape(out->launch_, probe.launch)) return nullptr;
  }
  for (size_t at = 0; at < params.size();) {
    bool same = true;
    for (const Probe& probe : probes) same = same && probe.launch.params[at] == params[at];
    if (same) {
      ++at;
      continue;
    }
    size_t word = at / sizeof(uintptr_t) * sizeof(uintptr_t);  // where a parameter has an address
    if (word + sizeof(uintptr_t) > params.size()) return nullptr;
    int base = FollowedBase(probes, word);
    if (base < 0) return nullptr;
    auto delta = static_cast<int64_t>(WordAt(params, word) - probes.front().bases[base]);
    out->patches_.push_back({word, base, delta});
    at = word + sizeof(uintptr_t);
  }
  void* function = nullptr;
  if (TheDriver().get_function == nullptr || TheDriver().launch == nullptr ||
      TheDriver().get_function(&function, out->launch_.kernel) != 0) {
    return nullptr;
  }
  out->launch_.kernel = function;  // spares the driver a look-up of 0.3 us
  return out;
}

void LaunchTemplate::Copy(char* params) const {
  std::memcpy(params, launch_.params.data(), launch_.params.size());
}

void LaunchTemplate::Write(char* at, uintptr_t address) {
  std::memcpy(at, &address, sizeof address);
}

bool LaunchTemplate::Launch(char* params, void* stream) const {
  LaunchConfig config = launch_.config;
  config.stream = stream;
  config.attributes = launch_.attributes.data();
  size_t bytes = launch_.params.size();
  void* extra[] = {
      reinterpret_cast<void*>(1),
      params,  // CU_LAUNCH_PARAM_BUFFER_POINTER
      reinterpret_cast<void*>(2),
      &bytes,   // CU_LAUNCH_PARAM_BUFFER_SIZE
      nullptr,  // CU_LAUNCH_PARAM_END
  };
  return TheDriver().launch(&config, launch_.kernel, nullptr, extra) == 0;
}

}  // namespace cudnn_aot
