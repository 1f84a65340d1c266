#include "requirements.h"

#include <sys/utsname.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>

#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

#include "error.h"
#include "text.h"

namespace cudnn_aot {
namespace {

struct Level {
  const char* name;
  std::vector<const char*> flags;  // that it adds; the psABI's names for some differ (lzcnt is abm)
};

const std::vector<Level>& Levels() {
  static const auto* levels = new std::vector<Level>{
      {"x86-64", {}},
      {"x86-64-v2", {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}},
      {"x86-64-v3", {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}},
      {"x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}},
  };
  return *levels;
}

int IndexOf(const std::string& level) {  // -1 for one that is unknown
  for (size_t i = 0; i < Levels().size(); ++i) {
    if (Levels()[i].name == level) return static_cast<int>(i);
  }
  return -1;
}

std::vector<std::string> Missing(const Level& level, const std::vector<std::string>& flags) {
  std::vector<std::string> out;
  for (const char* flag : level.flags) {
    if (!std::binary_search(flags.begin(), flags.end(), flag)) out.emplace_back(flag);
  }
  return out;
}

[[noreturn]] void Unmet(const std::string& what, const std::string& subject,
                        const std::string& required, const std::string& found) {
  throw RequirementFailure(what + " cannot run here: " + subject + ": requires " + required +
                           ", found " + found);
}

// The parts of a version that are numbers, to compare it by.
std::vector<long> Numbers(const std::string& version) {
  std::vector<long> out;
  std::istringstream parts(version);
  for (std::string part; std::getline(parts, part, '.');) {
    bool is_number = !part.empty() && part.size() < 10 &&
                     std::all_of(part.begin(), part.end(), [](char c) { return std::isdigit(c); });
    if (is_number) out.push_back(std::stol(part));
  }
  return out;
}

std::string CudaVersion(int64_t version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// "sm_100f": major, minor and 'f'. The last digit is the minor number.
bool ParseArch(const std::string& arch, std::pair<int, int>* capability, char* kind) {
  if (arch.compare(0, 3, "sm_") != 0) return false;
  size_t end = 3;
  while (end < arch.size() && std::isdigit(arch[end])) ++end;
  *kind = end + 1 == arch.size() ? arch[end] : '\0';
  bool is_whole = end == arch.size() || *kind == 'a' || *kind == 'f';
  if (end < 5 || end > 9 || !is_whole) return false;
  *capability = {std::stoi(arch.substr(3, end - 4)), arch[end - 1] - '0'};
  return true;
}

std::string WantedCapability(const std::string& arch) {
  std::pair<int, int> wanted;
  char kind = '\0';
  if (!ParseArch(arch, &wanted, &kind)) return "unknown";
  std::string major = std::to_string(wanted.first);
  std::string exact = major + "." + std::to_string(wanted.second);
  return kind == 'a' ? exact : exact + " or a later " + major + ".x";
}

std::vector<std::string> ReadFlags() {
  std::vector<std::string> out;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, 5, "flags") != 0) continue;
    std::istringstream words(line.substr(std::min(line.find(':'), line.size() - 1) + 1));
    for (std::string word; words >> word;) out.push_back(word);
    break;
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

Requirements ParseRequirements(const Value& value) {
  Requirements out;
  const std::pair<const char*, std::string*> texts[] = {{"gpu_arch", &out.gpu_arch},
                                                        {"host_triple", &out.host_triple},
                                                        {"host_level", &out.host_level},
                                                        {"glibc_min", &out.glibc_min},
                                                        {"cudnn", &out.cudnn}};
  const std::pair<const char*, int64_t*> numbers[] = {{"smem_optin_bytes", &out.smem_optin_bytes},
                                                      {"driver_min", &out.driver_min},
                                                      {"sm_count", &out.sm_count}};
  std::string unknown;  // the first in the order of the alphabet
  for (const auto& [name, field] : Reader(value, "requirements").Members()) {
    auto is_it = [&, &name = name](const auto& known) { return name == known.first; };
    const auto* text = std::find_if(std::begin(texts), std::end(texts), is_it);
    const auto* number = std::find_if(std::begin(numbers), std::end(numbers), is_it);
    bool is_known = text != std::end(texts) || number != std::end(numbers);
    if (is_known && field.value().kind == Value::Kind::kNull) continue;  // asks for nothing
    if (text != std::end(texts)) {
      *text->second = field.String();
    } else if (number != std::end(numbers)) {
      *number->second = field.Int();
    } else if (unknown.empty() || name < unknown) {
      unknown = name;
    }
  }
  if (unknown.empty()) return out;
  throw StoreFailure(Code::kStore, "the plan requires " + Quoted(unknown) +
                                       ", which this version of cudnn-aot cannot check: update "
                                       "cudnn-aot");
}

const Host& ThisHost() {
  static const auto* host = [] {
    auto* out = new Host;
    utsname system{};
    uname(&system);
    std::string name = system.sysname;
    std::transform(name.begin(), name.end(), name.begin(), [](char c) { return std::tolower(c); });
#ifdef __GLIBC__
    out->glibc = gnu_get_libc_version();
#endif
    out->triple =
        std::string(system.machine) + "-" + name + (out->glibc.empty() ? "-unknown" : "-gnu");
    out->flags = ReadFlags();
    return out;
  }();
  return *host;
}

std::string LevelOf(const std::vector<std::string>& flags) {
  std::string best = Levels()[0].name;
  for (const Level& level : Levels()) {
    if (!Missing(level, flags).empty()) break;
    best = level.name;
  }
  return best;
}

bool LevelCovers(const std::string& have, const std::string& wanted) {
  return IndexOf(wanted) >= 0 && IndexOf(have) >= IndexOf(wanted);
}

bool CapabilityOf(const std::string& arch, std::pair<int, int>* out) {
  char kind = '\0';
  return ParseArch(arch, out, &kind);
}

bool ArchRunsOn(const std::string& arch, std::pair<int, int> capability) {
  std::pair<int, int> wanted;
  char kind = '\0';
  if (!ParseArch(arch, &wanted, &kind)) return false;
  if (kind == 'a') return capability == wanted;
  return capability.first == wanted.first && capability.second >= wanted.second;
}

void CheckHost(const Requirements& needed, const std::string& what, const Host& host) {
  if (!needed.host_triple.empty() && needed.host_triple != host.triple) {
    Unmet(what, "host", needed.host_triple, host.triple);
  }
  if (!needed.host_level.empty()) {
    int wanted = IndexOf(needed.host_level);
    std::string found = LevelOf(host.flags);
    if (wanted < 0) Unmet(what, "host level", needed.host_level, found);
    for (int i = 0; i <= wanted; ++i) {
      std::vector<std::string> missing = Missing(Levels()[i], host.flags);
      if (missing.empty()) continue;
      found += std::string(" (") + Levels()[i].name + " needs " + Join(missing, ", ") + ")";
      Unmet(what, "host level", needed.host_level, found);
    }
  }
  if (!needed.glibc_min.empty() && Numbers(host.glibc) < Numbers(needed.glibc_min)) {
    Unmet(what, "glibc", needed.glibc_min + " or newer", host.glibc.empty() ? "none" : host.glibc);
  }
}

void CheckDevice(const Requirements& needed, const std::string& what, int device,
                 const cuda::Attributes& attributes) {
  std::string where = "cuda:" + std::to_string(device);
  std::pair<int, int> capability = {attributes.major, attributes.minor};
  if (!needed.gpu_arch.empty() && !ArchRunsOn(needed.gpu_arch, capability)) {
    Unmet(what, "device " + where,
          needed.gpu_arch + " (compute capability " + WantedCapability(needed.gpu_arch) + ")",
          "compute capability " + std::to_string(capability.first) + "." +
              std::to_string(capability.second));
  }
  if (needed.sm_count != 0 && attributes.sm_count != needed.sm_count) {
    Unmet(what, "device " + where, std::to_string(needed.sm_count) + " SMs exactly",
          std::to_string(attributes.sm_count));
  }
  if (attributes.driver_version < needed.driver_min) {
    Unmet(what, "CUDA driver", "one for CUDA " + CudaVersion(needed.driver_min) + " or newer",
          "one for CUDA " + CudaVersion(attributes.driver_version));
  }
  if (attributes.smem_optin_bytes < needed.smem_optin_bytes) {
    Unmet(what, "shared memory of " + where,
          std::to_string(needed.smem_optin_bytes) + " bytes for one block",
          std::to_string(attributes.smem_optin_bytes));
  }
}

}  // namespace cudnn_aot
