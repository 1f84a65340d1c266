// Serves plans of a store: requests are lines of standard input, answered by several threads.
//
//   server [--store STORE]... [--digest DIGEST]... [--target TARGET] [--device N] [--threads N]
//          [--repeat N] [--out FOLDER] [PLAN...]
//
// Stores lie in layers, the first before the others; digests are their root digests, one for each.
// A request is the name of a plan and values of its symbols ("ffn_up M=17"); a symbol that is left
// out has its hint. Each is computed on data of its own, --repeat times; its answer is a line with
// the sum over each output, whose elements --out leaves in FOLDER/<line>.<uid>. After the last
// request come the latencies of execute. All plans, or those that are named, are loaded and
// prepared at the start. Exits 1 if anything failed.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cudnn_aot.hpp"
#include "elements.h"
#include "memory.h"

namespace {

struct Options {
  std::vector<std::string> stores, digests;
  std::string target, out;
  int device = 0;
  int threads = 4;
  int repeat = 1;
  std::vector<std::string> names;
};

struct Request {
  size_t line = 0;
  std::string text;
  std::string name;
  std::map<std::string, int64_t> values;
};

struct Latencies {
  std::mutex mutex;
  std::map<std::string, std::vector<double>> us;  // by request
};

using Plans = std::map<std::string, cudnn_aot::Plan>;

const char* OrNull(const std::string& text) { return text.empty() ? nullptr : text.c_str(); }

[[noreturn]] void Stop(const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  std::exit(1);
}

void Need(const cudnn_aot::Error& error) {
  if (error) Stop(std::string(error.name()) + ": " + error.message());
}

Options ParseOptions(int argc, char** argv) {
  Options out;
  auto number = [](const char* text) {
    int value = std::atoi(text);
    if (value < 0) Stop(std::string("got ") + text + ", want a number from 0 on");
    return value;
  };
  for (int i = 1; i < argc; ++i) {
    std::string option = argv[i];
    if (option.rfind("--", 0) != 0) {
      out.names.push_back(option);
      continue;
    }
    if (++i == argc) Stop(option + ": want a value");
    if (option == "--store") {
      out.stores.push_back(argv[i]);
    } else if (option == "--digest") {
      out.digests.push_back(argv[i]);
    } else if (option == "--target") {
      out.target = argv[i];
    } else if (option == "--out") {
      out.out = argv[i];
    } else if (option == "--device") {
      out.device = number(argv[i]);
    } else if (option == "--threads") {
      out.threads = std::max(number(argv[i]), 1);
    } else if (option == "--repeat") {
      out.repeat = std::max(number(argv[i]), 1);
    } else {
      Stop("unknown option " + option);
    }
  }
  return out;
}

Plans LoadPlans(const Options& options) {
  cudnn_aot::Store store;
  Need(cudnn_aot::Store::Open(options.stores, options.digests, OrNull(options.target), &store));
  std::vector<std::string> names = options.names;
  if (names.empty()) {
    std::vector<std::pair<std::string, std::string>> all;
    Need(store.Names(&all));
    for (const auto& [target, name] : all) {
      if (options.target.empty() || target == options.target) names.push_back(name);
    }
  }
  Plans plans;
  for (const std::string& name : names) {
    cudnn_aot::Error error = store.Load(name.c_str(), &plans[name]);
    if (error && error.code() == CUDNN_AOT_GRAPH_NOT_SUPPORTED_ERROR && options.names.empty()) {
      plans.erase(name);  // declined when the store was built: it is not served
      continue;
    }
    Need(error);
    Need(plans[name].Prepare(options.device));
  }
  if (plans.empty()) Stop("the store has no plan to serve");
  return plans;
}

std::vector<Request> ReadRequests() {
  std::vector<Request> out;
  for (std::string line; std::getline(std::cin, line);) {
    Request request;
    request.line = out.size() + 1;
    request.text = line;
    std::istringstream words(line);
    if (!(words >> request.name)) continue;
    for (std::string word; words >> word;) {
      size_t equals = word.find('=');
      if (equals == std::string::npos) Stop("bad request " + line + ": want PLAN SYMBOL=VALUE...");
      request.values[word.substr(0, equals)] = std::atoll(word.c_str() + equals + 1);
    }
    out.push_back(std::move(request));
  }
  return out;
}

// One operand of one request.
struct Operand {
  cudnn_aot_operand info{};
  std::vector<int64_t> dim, stride;
  Memory memory;
  std::vector<char> host;
  DLTensor tensor{};
};

cudnn_aot::Error MakeOperand(const cudnn_aot::Plan& plan, const cudnn_aot_operand& info,
                             const cudnn_aot::Symbols& symbols, const Device& device, int index,
                             Operand* out) {
  out->info = info;
  cudnn_aot::Error error = plan.Layout(info, symbols, &out->dim, &out->stride);
  if (error) return error;
  bool is_scalar = info.kind == CUDNN_AOT_SCALAR;
  int64_t count = 1;
  for (int32_t axis = 0; axis < info.rank; ++axis) {
    count = out->dim[axis] == 0 ? 0 : count + (out->dim[axis] - 1) * out->stride[axis];
    if (count == 0) break;
  }
  out->host = MakeElements(info.dtype, count, static_cast<uint32_t>(info.uid));
  if (info.kind == CUDNN_AOT_OUTPUT) std::fill(out->host.begin(), out->host.end(), '\0');
  void* data = out->host.data();
  if (!is_scalar) {
    out->memory = device.Allocate(out->host.size());
    device.Write(data = out->memory.get(), out->host);
  }
  DLDeviceType type = is_scalar ? kDLCPU : plan.info().device_type;
  out->tensor = {data,
                 {type, type == kDLCUDA ? index : 0},
                 info.rank,
                 info.dtype,
                 out->dim.data(),
                 out->stride.data(),
                 0};
  return error;
}

// Computes one request and gives its answer as a line.
cudnn_aot::Error Serve(cudnn_aot::Plan& plan, const Request& request, const Options& options,
                       const Device& device, void* stream, std::vector<double>* us,
                       std::string* answer) {
  cudnn_aot::Symbols symbols;
  std::vector<cudnn_aot_symbol> declared = plan.symbols();
  for (const cudnn_aot_symbol& symbol : declared) {
    if (request.values.count(symbol.name) == 0) symbols.Set(symbol.name, symbol.hint);
  }
  for (const auto& [name, value] : request.values) symbols.Set(name.c_str(), value);

  std::vector<cudnn_aot_operand> infos = plan.operands();
  std::vector<Operand> operands(infos.size());
  cudnn_aot::Bindings bindings;
  for (size_t i = 0; i < infos.size(); ++i) {
    if (infos[i].kind == CUDNN_AOT_SCALAR && infos[i].is_optional) continue;  // its default
    auto error = MakeOperand(plan, infos[i], symbols, device, options.device, &operands[i]);
    if (error) return error;
    bindings.Bind(infos[i].uid, &operands[i].tensor);
  }
  cudnn_aot::Workspace workspace;
  if (auto error = plan.WorkspaceBytes(symbols, &workspace.bytes)) return error;
  Memory room = device.Allocate(static_cast<size_t>(workspace.bytes));
  workspace.data = room.get();

  for (int i = 0; i < options.repeat; ++i) {
    auto began = std::chrono::steady_clock::now();
    auto error = plan.Execute(bindings, workspace, stream, symbols);
    std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
    if (error) return error;
    us->push_back(took.count());
  }
  device.Synchronize(stream);

  std::ostringstream line;
  line.precision(17);
  line << request.line << " " << request.name;
  for (Operand& operand : operands) {
    if (operand.info.kind != CUDNN_AOT_OUTPUT) continue;
    device.Read(&operand.host, operand.memory.get());
    line << " " << operand.info.uid << ":" << SumOf(operand.info.dtype, operand.host);
    if (options.out.empty()) continue;
    std::ofstream file(options.out + "/" + std::to_string(request.line) + "." +
                       std::to_string(operand.info.uid));
    file.write(operand.host.data(), static_cast<std::streamsize>(operand.host.size()));
  }
  *answer = line.str();
  return {};
}

void PrintLatencies(Latencies* latencies) {
  std::printf("%-24s %8s %8s %8s %8s   us of execute\n", "request", "calls", "p50", "p90", "p99");
  for (auto& [request, us] : latencies->us) {
    std::sort(us.begin(), us.end());
    auto at = [&us = us](double share) { return us[static_cast<size_t>(share * (us.size() - 1))]; };
    std::printf("%-24s %8zu %8.2f %8.2f %8.2f\n", request.c_str(), us.size(), at(0.5), at(0.9),
                at(0.99));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options = ParseOptions(argc, argv);
  Plans plans = LoadPlans(options);
  bool cuda = plans.begin()->second.info().device_type == kDLCUDA;
  Device device(cuda, options.device);
  std::vector<Request> requests = ReadRequests();
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  Latencies latencies;
  auto work = [&] {
    device.UseOnThisThread();
    Memory stream = device.MakeStream();
    for (size_t i; (i = next.fetch_add(1)) < requests.size();) {
      const Request& request = requests[i];
      auto found = plans.find(request.name);
      std::vector<double> us;
      std::string answer = "no plan " + request.name;
      bool done = false;
      if (found != plans.end()) {
        auto error = Serve(found->second, request, options, device, stream.get(), &us, &answer);
        done = !error;
        if (error) answer = std::string(error.name()) + ": " + error.message();
      }
      std::lock_guard<std::mutex> lock(latencies.mutex);
      std::fprintf(done ? stdout : stderr, done ? "%s\n" : "error: %s\n", answer.c_str());
      if (!done) failed = true;
      auto& all = latencies.us[request.text];
      all.insert(all.end(), us.begin(), us.end());
      if (all.empty()) latencies.us.erase(request.text);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < options.threads; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  PrintLatencies(&latencies);
  return failed ? 1 : 0;
}
