// Giving up the interpreter lock around work that knows no Python; the binding layer only.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <exception>

namespace cudnn_aot {

// Runs `work` without the interpreter lock. An interpreter that is exiting lets no thread back in:
// Python before 3.14 unwinds such a thread, which ends the process when it meets C++ code that may
// not throw. Here it waits for the end, as in later versions.
template <typename Work>
auto WithoutGil(Work work) -> decltype(work()) {
  struct Released {
    PyThreadState* state = PyEval_SaveThread();
    ~Released() noexcept(false) {
      try {
        PyEval_RestoreThread(state);
      } catch (abi::__forced_unwind&) {
        for (;;) pause();
      }
    }
  } released;
  return work();
}

}  // namespace cudnn_aot
