// The extension module cudnn_aot._native: registrations only.
#include <pybind11/pybind11.h>

#include "bound_plan_type.h"
#include "caller_type.h"
#include "cuda.h"
#include "error.h"
#include "ffi.h"
#include "gil.h"
#include "kernel.h"
#include "plan_type.h"
#include "python_error.h"
#include "python_requirements.h"
#include "python_store.h"
#include "text.h"

namespace py = pybind11;

namespace cudnn_aot {
namespace {

std::shared_ptr<const Kernel> LoadKernelFromBytes(const py::bytes& data, const std::string& symbol,
                                                  const py::object& known_digest) {
  if (!ffi::Ready()) throw LaunchFailure("call init_ffi before load_kernel");
  py::object digest = known_digest;
  if (digest.is_none()) {
    digest = py::module_::import("hashlib").attr("sha256")(data).attr("hexdigest")();
  }
  auto digest_text = digest.cast<std::string>();
  std::string_view bytes(data);
  return WithoutGil([&] { return LoadKernel(bytes, digest_text, symbol); });
}

py::object LoadCudart(const py::object& path) {
  std::string loaded = cuda::LoadRuntime(path.is_none() ? "" : path.cast<std::string>());
  if (loaded.empty()) return py::none();
  return py::str(loaded);
}

py::object LoadedCudart() {
  std::string found = cuda::FindLoadedRuntime();
  if (found.empty()) return py::none();
  return py::str(found);
}

py::list NearestOf(const std::string& name, const py::iterable& names) {
  std::vector<std::string> all;
  for (py::handle each : names) all.push_back(each.cast<std::string>());
  py::list out;
  for (const std::string& near : Nearest(name, all)) out.append(near);
  return out;
}

}  // namespace
}  // namespace cudnn_aot

PYBIND11_MODULE(_native, m) {
  using namespace cudnn_aot;  // NOLINT: registrations
  m.doc() = "Launch-table executor of cudnn-aot.";
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      std::rethrow_exception(error);
    } catch (const TableError&) {
      SetPythonError(error);
    } catch (const Refusal&) {
      SetPythonError(error);
    } catch (const LaunchFailure&) {
      SetPythonError(error);
    } catch (const RequirementFailure&) {
      SetPythonError(error);
    } catch (const StoreFailure&) {
      SetPythonError(error);
    }
  });
  py::class_<Kernel, std::shared_ptr<Kernel>>(m, "Kernel", "A loaded kernel function.")
      .def_readonly("symbol", &Kernel::symbol)
      .def_readonly("digest", &Kernel::digest);
  auto plan_type = py::reinterpret_steal<py::object>(MakePlanType());
  m.attr("Plan") = plan_type;
  m.attr("BoundPlan") = py::reinterpret_steal<py::object>(MakeBoundPlanType());
  m.attr("Caller") = py::reinterpret_steal<py::object>(MakeCallerType());
  m.attr("Launcher") = py::reinterpret_steal<py::object>(MakeLauncherType());
  m.def("init_ffi", &ffi::Init, py::arg("path"));
  m.def(
      "load_kernel",
      [](const py::bytes& data, const std::string& symbol, const py::object& digest) {
        return std::const_pointer_cast<Kernel>(LoadKernelFromBytes(data, symbol, digest));
      },
      py::arg("data"), py::arg("symbol"), py::arg("digest") = py::none());
  m.def("load_cudart", &LoadCudart, py::arg("path") = py::none());
  m.def("loaded_cudart", &LoadedCudart);
  m.def("current_device", &cuda::CurrentDevice);
  m.def("nearest", &NearestOf, py::arg("name"), py::arg("names"));
  DefineRequirements(m);
  DefineStore(m, plan_type);
}
