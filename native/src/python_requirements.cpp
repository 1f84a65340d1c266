#include "python_requirements.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python_value.h"
#include "requirements.h"

namespace cudnn_aot {
namespace {

namespace py = pybind11;

std::vector<std::string> Sorted(const py::iterable& flags) {
  std::vector<std::string> out;
  for (py::handle flag : flags) out.push_back(flag.cast<std::string>());
  std::sort(out.begin(), out.end());
  return out;
}

std::pair<int, int> Capability(const py::handle& pair) {
  auto numbers = py::reinterpret_borrow<py::sequence>(pair);
  return {numbers[0].cast<int>(), numbers[1].cast<int>()};
}

py::object ArchCapability(const std::string& arch) {
  std::pair<int, int> found;
  if (!CapabilityOf(arch, &found)) return py::none();
  return py::make_tuple(found.first, found.second);
}

void CheckHostOf(const std::string& what, const py::dict& needed, const Host& host) {
  CheckHost(ParseRequirements(ValueOf(needed.ptr())), what, host);
}

void CheckDeviceOf(const std::string& what, const py::dict& needed, int device,
                   const py::dict& attributes) {
  CheckDevice(ParseRequirements(ValueOf(needed.ptr())), what, device, AttributesFrom(attributes));
}

py::dict AttributesOf(int device) {
  cuda::Attributes found = cuda::DeviceAttributes(device);
  py::dict out;
  out["compute_capability"] = py::make_tuple(found.major, found.minor);
  out["sm_count"] = found.sm_count;
  out["smem_optin_bytes"] = found.smem_optin_bytes;
  out["l2_bytes"] = found.l2_bytes;
  out["driver_version"] = found.driver_version;
  return out;
}

}  // namespace

cuda::Attributes AttributesFrom(const py::dict& attributes) {
  auto number = [&](const char* name) { return attributes[name].cast<int>(); };
  cuda::Attributes out;
  std::tie(out.major, out.minor) = Capability(attributes["compute_capability"]);
  out.sm_count = number("sm_count");
  out.smem_optin_bytes = number("smem_optin_bytes");
  out.driver_version = number("driver_version");
  return out;
}

void DefineRequirements(py::module_& m) {
  m.def("device_attributes", &AttributesOf, py::arg("device"));
  py::class_<Host>(m, "Host", "A machine that runs host code.")
      .def(py::init([](const std::string& triple, const std::string& glibc,
                       const py::iterable& flags) { return Host{triple, glibc, Sorted(flags)}; }),
           py::arg("triple"), py::arg("glibc"), py::arg("flags"))
      .def_readonly("triple", &Host::triple)
      .def_readonly("glibc", &Host::glibc)
      .def_property_readonly("level", [](const Host& host) { return LevelOf(host.flags); });
  m.def("this_host", &ThisHost, py::return_value_policy::reference);
  m.def("level_covers", &LevelCovers, py::arg("have"), py::arg("wanted"));
  m.def("arch_capability", &ArchCapability, py::arg("arch"));
  m.def(
      "arch_runs_on",
      [](const std::string& arch, const py::object& capability) {
        return ArchRunsOn(arch, Capability(capability));
      },
      py::arg("arch"), py::arg("capability"));
  m.def("check_host", &CheckHostOf, py::arg("what"), py::arg("requirements"), py::arg("host"));
  m.def("check_device", &CheckDeviceOf, py::arg("what"), py::arg("requirements"), py::arg("device"),
        py::arg("attributes"));
}

}  // namespace cudnn_aot
