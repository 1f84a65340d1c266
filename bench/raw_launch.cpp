// Repeats one captured kernel launch through cuLaunchKernelEx, as fast as C++ can: the floor that the
// launch bench compares with. Same function, parameters, grid and attributes as the captured launch.
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

// Nanoseconds of host time per launch over `count` launches, or a negative CUresult.
double raw_launch_ns(Launch* launch, CUstream stream, int count) {
  using LaunchKernelEx = CUresult (*)(const CUlaunchConfig*, CUfunction, void**, void**);
  auto launch_kernel = Driver<LaunchKernelEx>("cuLaunchKernelEx");
  const CUDA_KERNEL_NODE_PARAMS& p = launch->params;
  CUfunction function = p.func ? p.func : reinterpret_cast<CUfunction>(p.kern);
  CUlaunchConfig config{};
  config.gridDimX = p.gridDimX;
  config.gridDimY = p.gridDimY;
  config.gridDimZ = p.gridDimZ;
  config.blockDimX = p.blockDimX;
  config.blockDimY = p.blockDimY;
  config.blockDimZ = p.blockDimZ;
  config.sharedMemBytes = p.sharedMemBytes;
  config.hStream = stream;
  config.attrs = launch->attributes.data();
  config.numAttrs = static_cast<unsigned>(launch->attributes.size());
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) {
    CUresult result = launch_kernel(&config, function, p.kernelParams, p.extra);
    if (result != CUDA_SUCCESS) return -static_cast<double>(result);
  }
  std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
  return elapsed.count() / count;
}

void raw_launch_close(Launch* launch) { delete launch; }
}
