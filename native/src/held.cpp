#include "held.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "sha256.h"

namespace cudnn_aot {
namespace {

// Offsets as in `cache.held`: the kind, 24 bits of the target's digest, 32 of the graph key.
constexpr int64_t kPruned = int64_t{1} << 56;
constexpr int64_t kTarget = int64_t{1} << 32;

constexpr auto kPoll = std::chrono::milliseconds(1);
constexpr int kPolls = 5000;  // then prune has been stopped, and reading says what there is

// Of all objects. A fork waits for a lock that is being set, whose thread the child does not have.
std::mutex& Mutex() {
  static std::mutex mutex;
  static const int at_fork =
      pthread_atfork([] { Mutex().lock(); }, [] { Mutex().unlock(); }, [] { Mutex().unlock(); });
  static_cast<void>(at_fork);
  return mutex;
}

struct flock Request(int16_t type, int64_t offset, int64_t length) {
  struct flock out = {};
  out.l_type = type;
  out.l_whence = SEEK_SET;
  out.l_start = offset;
  out.l_len = length;
  return out;
}

}  // namespace

HeldGraphs::HeldGraphs(const std::string& store)
    : fd_(open((store + "/store.json").c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW)) {}

HeldGraphs::~HeldGraphs() {
  if (fd_ >= 0) close(fd_);
}

void HeldGraphs::Take(const std::string& target, const std::string& graph_key) {
  if (fd_ < 0) return;
  int64_t offset = std::stoll(graph_key.substr(0, 8), nullptr, 16);
  int64_t length = 1;
  {
    std::lock_guard<std::mutex> guard(Mutex());
    auto [at, is_new] = targets_.try_emplace(target);
    Target& held = at->second;
    if (is_new) held.offset = std::stoll(Sha256Hex(target).substr(0, 6), nullptr, 16) * kTarget;
    offset += held.offset;
    if (held.is_whole || held.graphs.count(offset) > 0) return;
    if (held.graphs.size() >= kMost) {
      offset = held.offset;
      length = kTarget;
    }
    struct flock mine = Request(F_RDLCK, offset, length);
    if (fcntl(fd_, F_OFD_SETLK, &mine) != 0) return;
  }
  for (int i = 0; i < kPolls; ++i) {
    struct flock asked = Request(F_WRLCK, kPruned + offset, length);
    if (fcntl(fd_, F_OFD_GETLK, &asked) != 0 || asked.l_type == F_UNLCK) break;
    std::this_thread::sleep_for(kPoll);
  }
  std::lock_guard<std::mutex> guard(Mutex());
  Target& held = targets_[target];
  if (length == 1) {
    held.graphs.insert(offset);
  } else {
    held.is_whole = true;
  }
}

}  // namespace cudnn_aot
