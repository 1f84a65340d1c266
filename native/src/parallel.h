// Independent pieces of work on a few threads.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

namespace cudnn_aot {

// The processors that this thread may run on.
inline size_t NumProcessors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return std::thread::hardware_concurrency();
  return static_cast<size_t>(CPU_COUNT(&set));
}

// Calls `work(i)`, which throws nothing, once for each i below `count`, on the calling thread and
// others; returns when all is done.
template <typename Work>
void ForEachInParallel(size_t count, Work work) {
  constexpr size_t kMostThreads = 8;     // loading is behind the loader's one lock half of the time
  constexpr size_t kLeastPerThread = 8;  // starting a thread costs as much as a part of a plan
  std::atomic<size_t> next{0};
  auto run = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  size_t wanted = std::min({NumProcessors(), kMostThreads, count / kLeastPerThread});
  std::vector<std::thread> threads;
  try {
    while (threads.size() + 1 < wanted) threads.emplace_back(run);
  } catch (const std::system_error&) {  // there are no more threads: those that there are do it
  }
  run();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace cudnn_aot
