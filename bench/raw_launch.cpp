// Repeats one captured kernel launch through cuLaunchKernelEx, as fast as C++ can: the floor that the
// launch bench compares with. Same function, parameters, grid and attributes as the captured launch.
// Beside it, the same launch through the CUDA runtime, and calls of a tvm-ffi function.
//
//   g++ -O2 -shared -fPIC -I/usr/local/cuda/include raw_launch.cpp -o libraw_launch.so -ldl

#include <cuda.h>
#include <dlfcn.h>

#include <chrono>
#include <vector>

namespace {

template <typename F>
F Driver(const char* name) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  return library ? reinterpret_cast<F>(dlsym(library, name)) : nullptr;
}

struct Launch {
  CUDA_KERNEL_NODE_PARAMS params{};
  std::vector<CUlaunchAttribute> attributes;
};

using LaunchKernelEx = CUresult (*)(const CUlaunchConfig*, CUfunction, void**, void**);

template <typename F>
double Repeat(const Launch& launch, CUstream stream, int count, F once) {
  const CUDA_KERNEL_NODE_PARAMS& p = launch.params;
  CUlaunchConfig config{};
  config.gridDimX = p.gridDimX;
  config.gridDimY = p.gridDimY;
  config.gridDimZ = p.gridDimZ;
  config.blockDimX = p.blockDimX;
  config.blockDimY = p.blockDimY;
  config.blockDimZ = p.blockDimZ;
  config.sharedMemBytes = p.sharedMemBytes;
  config.hStream = stream;
  config.attrs = const_cast<CUlaunchAttribute*>(launch.attributes.data());
  config.numAttrs = static_cast<unsigned>(launch.attributes.size());
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) {
    int result = once(config);
    if (result != 0) return -static_cast<double>(result);
  }
  std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
  return elapsed.count() / count;
}

}  // namespace

extern "C" {

// The one kernel node of `graph` as a launch, or null if it has another number of kernel nodes.
// The graph owns the parameter block and must outlive the launch.
Launch* raw_launch_open(CUgraph graph) {
  auto get_nodes = Driver<decltype(&cuGraphGetNodes)>("cuGraphGetNodes");
  auto get_type = Driver<decltype(&cuGraphNodeGetType)>("cuGraphNodeGetType");
  using GetParams = CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*);
  auto get_params = Driver<GetParams>("cuGraphKernelNodeGetParams_v2");
  using GetAttribute = CUresult (*)(CUgraphNode, CUlaunchAttributeID, CUlaunchAttributeValue*);
  auto get_attribute = Driver<GetAttribute>("cuGraphKernelNodeGetAttribute");
  if (!get_nodes || !get_type || !get_params || !get_attribute) return nullptr;

  size_t count = 0;
  if (get_nodes(graph, nullptr, &count) != CUDA_SUCCESS) return nullptr;
  std::vector<CUgraphNode> nodes(count), kernels;
  get_nodes(graph, nodes.data(), &count);
  for (CUgraphNode node : nodes) {
    CUgraphNodeType type;
    if (get_type(node, &type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_KERNEL) {
      kernels.push_back(node);
    }
  }
  if (kernels.size() != 1) return nullptr;

  auto* launch = new Launch;
  if (get_params(kernels[0], &launch->params) != CUDA_SUCCESS) {
    delete launch;
    return nullptr;
  }
  CUlaunchAttribute serialization{};
  serialization.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  launch->attributes.push_back(serialization);
  for (CUlaunchAttributeID id :
       {CU_LAUNCH_ATTRIBUTE_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION}) {
    CUlaunchAttribute attribute{};
    attribute.id = id;
    if (get_attribute(kernels[0], id, &attribute.value) != CUDA_SUCCESS) continue;
    bool no_cluster =
        id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION && attribute.value.clusterDim.x == 0;
    if (!no_cluster) launch->attributes.push_back(attribute);
  }
  return launch;
}

// Both launches: nanoseconds of host time each, over `count` of them, or a negative error code.
double raw_launch_ns(Launch* launch, CUstream stream, int count) {
  auto launch_kernel = Driver<LaunchKernelEx>("cuLaunchKernelEx");
  CUfunction function = launch->params.func ? launch->params.func
                                            : reinterpret_cast<CUfunction>(launch->params.kern);
  return Repeat(*launch, stream, count, [&](const CUlaunchConfig& config) {
    return launch_kernel(&config, function, launch->params.kernelParams, launch->params.extra);
  });
}

// `launch_kernel` is cudaLaunchKernelExC, whose configuration has the layout of the driver's. Wants
// a kernel handle: 0 where the captured node has none.
double runtime_launch_ns(Launch* launch, CUstream stream, int count,
                         int (*launch_kernel)(const CUlaunchConfig*, const void*, void**)) {
  if (!launch->params.kern) return 0;
  return Repeat(*launch, stream, count, [&](const CUlaunchConfig& config) {
    return launch_kernel(&config, launch->params.kern, launch->params.kernelParams);
  });
}

// Nanoseconds of host time per call of a tvm-ffi function with ready-made arguments, or -1.
double ffi_call_ns(int (*function)(void*, const void*, int, void*), const void* args,
                   int num_args, int count) {
  long long result[2] = {};
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) {
    if (function(nullptr, args, num_args, result) != 0) return -1;
  }
  std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
  return elapsed.count() / count;
}

void raw_launch_close(Launch* launch) { delete launch; }
}
