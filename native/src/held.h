// What a process holds of a store, so that `prune` leaves it: shared locks on bytes of
// `store.json`, through one read-only descriptor. Nothing is written. `cache.held` is the half of
// `prune` and of builders, and says which byte stands for what.
//
// A reader locks the byte of a graph and then asks whether `prune` has marked that graph; `prune`
// marks it and then asks whether the graph's byte is locked. So never do both go on.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace cudnn_aot {

// Every lock ends with the object, and with the process and its forked children. On a file system
// without locks, and in a store without that file, nothing is held and nothing fails.
class HeldGraphs {
 public:
  explicit HeldGraphs(const std::string& store);
  ~HeldGraphs();
  HeldGraphs(const HeldGraphs&) = delete;
  HeldGraphs& operator=(const HeldGraphs&) = delete;

  // Holds a graph, whose key has 64 hex digits, on a target from now on. Waits while `prune` takes
  // it away. What is read of the graph afterwards stays, or is gone as a whole.
  void Take(const std::string& target, const std::string& graph_key);

  // Graphs of one target that are held one by one; with one more it is the target that is held.
  // The system looks through all locks on a file for each that is set.
  static constexpr size_t kMost = 32;

 private:
  struct Target {
    int64_t offset = 0;
    std::set<int64_t> graphs;
    bool is_whole = false;
  };

  int fd_;
  std::map<std::string, Target> targets_;
};

}  // namespace cudnn_aot
