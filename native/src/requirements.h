// What a stored plan requires of the machine that runs it, and whether this one has it.
//
// The host's part is checked before any of the plan's code is loaded, the device's part before the
// first call on that device. Zero or empty asks for nothing.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cuda.h"
#include "value.h"

namespace cudnn_aot {

// The least machine that runs a plan; `sm_count` and `cudnn` are met by equal ones only.
struct Requirements {
  std::string gpu_arch;
  int64_t smem_optin_bytes = 0;
  int64_t driver_min = 0;
  std::string host_triple;
  std::string host_level;
  std::string glibc_min;
  int64_t sm_count = 0;
  std::string cudnn;
};

// Throws StoreFailure for one that this version does not know how to check, and TableError.
Requirements ParseRequirements(const Value& value);

struct Host {
  std::string triple;              // "x86_64-linux-gnu"
  std::string glibc;               // "2.36", or "" where the C library is another
  std::vector<std::string> flags;  // of the CPU, as /proc/cpuinfo calls them, sorted
};

const Host& ThisHost();  // read once

// The highest x86-64 level of a CPU with these flags, which are sorted.
std::string LevelOf(const std::vector<std::string>& flags);
// Whether a host of one level runs code for another; a level that is unknown runs nowhere.
bool LevelCovers(const std::string& have, const std::string& wanted);

// The compute capability that an architecture is named for; false for "" and what is none.
bool CapabilityOf(const std::string& arch, std::pair<int, int>* out);
// Whether machine code for `arch` runs on a device of that compute capability: sm_90a is for 9.0
// alone, sm_100f for its family, sm_80 for 8.0 and later 8.x.
bool ArchRunsOn(const std::string& arch, std::pair<int, int> capability);

// Throw RequirementFailure, with `what` as the subject, unless the machine runs the plan.
void CheckHost(const Requirements& needed, const std::string& what, const Host& host);
void CheckDevice(const Requirements& needed, const std::string& what, int device,
                 const cuda::Attributes& attributes);

}  // namespace cudnn_aot
