#include "python_store.h"

#include <pybind11/stl.h>

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "error.h"
#include "gil.h"
#include "held.h"
#include "plan_record.h"
#include "plan_type.h"
#include "python_error.h"
#include "python_requirements.h"
#include "python_value.h"
#include "store.h"
#include "text.h"

namespace cudnn_aot {
namespace {

namespace py = pybind11;

struct RecordObject {
  PlanRecord record;
  py::object document;  // the record as Python data, once somebody asked
};

// Any string, also one that is no text and so names nothing.
std::string NameOf(const py::str& name) {
  auto bytes = py::reinterpret_steal<py::object>(
      PyUnicode_AsEncodedString(name.ptr(), "utf-8", "surrogatepass"));
  if (!bytes) throw py::error_already_set();
  return bytes.cast<std::string>();
}

// Faults that other layers made good, until somebody takes them; from any thread.
class Faults {
 public:
  void Add(const StoreFailure& fault) {
    std::lock_guard<std::mutex> lock(mutex_);
    faults_.push_back(std::make_exception_ptr(fault));
  }
  std::vector<std::exception_ptr> Take() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(faults_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::exception_ptr> faults_;
};

struct StoreObject {
  Faults faults;
  Store store;

  explicit StoreObject(const Opening& opening)
      : store(opening, [this](const StoreFailure& fault) { faults.Add(fault); }) {}
};

py::str PathText(const std::string& path) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

// The Python error that stands for a C++ exception, not raised.
py::object ErrorObject(const std::exception_ptr& error) {
  SetPythonError(error);
  py::error_already_set raised;
  return raised.value();
}

std::unique_ptr<RecordObject> MakeRecord(const std::string& name,
                                         std::map<std::string, int64_t> uids,
                                         const py::object& document) {
  auto out = std::make_unique<RecordObject>();
  out->document = document;
  Value value;
  try {
    value = ValueOf(document.ptr());
  } catch (const TableError& error) {
    throw StoreFailure(Code::kStore, "plan record of " + Quoted(name) + ": " + error.what());
  }
  out->record = ParsePlanRecord(name, std::move(uids), value);
  return out;
}

py::object DocumentOf(RecordObject& self) {
  if (!self.document) {
    py::bytes text(self.record.text);  // before another thread gets its turn
    py::object made = py::module_::import("json").attr("loads")(text);
    if (!self.document) self.document = made;
    self.record.text = {};
  }
  return self.document;
}

py::list KernelsOf(const RecordObject& self) {
  py::list out;
  for (const auto& [blob, symbol] : self.record.kernels) out.append(py::make_tuple(blob, symbol));
  return out;
}

std::unique_ptr<StoreObject> OpenStore(const std::vector<py::bytes>& layers, const py::str& target,
                                       std::vector<std::string> digests) {
  Opening opening{{layers.begin(), layers.end()}, NameOf(target), std::move(digests)};
  return WithoutGil([&] { return std::make_unique<StoreObject>(opening); });
}

// The path and the root digest of each layer, empty where it is not pinned.
py::list LayersOf(const StoreObject& self) {
  py::list out;
  for (const StoreReader& reader : self.store.layers().readers()) {
    out.append(py::make_tuple(PathText(reader.path()), reader.pin()));
  }
  return out;
}

py::list TakeFaults(StoreObject& self) {
  py::list out;
  for (const std::exception_ptr& fault : self.faults.Take()) out.append(ErrorObject(fault));
  return out;
}

py::tuple FindOf(const StoreObject& self, const py::str& name, const py::str& target) {
  std::string asked = NameOf(name), holder = NameOf(target);
  Found found = WithoutGil([&] { return self.store.Find(asked, holder); });
  py::list records;
  const Value* stored = found.pointer.Find("records");
  if (stored != nullptr && !stored->items.empty()) records.append(stored->items[0].string);
  return py::make_tuple(found.target, found.graph_key, found.uids, records);
}

// A plan object with the hook that `hook(record)` gives it.
py::object PlanOf(Answer* answer, const py::object& record, const py::object& hook,
                  const py::object& refusals, PyTypeObject* plan_type) {
  py::object own = hook(record);
  PyObject* plan = Guarded<PyObject*>(nullptr, [&] {
    return MakePlan(plan_type, std::move(answer->plan), own.ptr(), refusals.ptr());
  });
  if (plan == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(plan);
}

py::list LoadAll(const Store& store, const py::list& asked, const std::string& provider,
                 const Host* host, const py::object& hook, const py::dict& refusals,
                 PyTypeObject* plan_type) {
  std::vector<Request> requests;
  for (py::handle each : asked) {
    auto fields = py::reinterpret_borrow<py::tuple>(each);
    requests.push_back({NameOf(fields[0]), NameOf(fields[1]), NameOf(fields[2])});
  }
  bool kernels = !hook.is_none();
  auto answers = WithoutGil([&] { return store.Load(requests, provider, host, kernels); });
  py::list out(answers.size());
  for (size_t i = 0; i < answers.size(); ++i) {
    Answer& answer = answers[i];
    if (answer.error) {
      out[i] = ErrorObject(answer.error);
      continue;
    }
    py::object record =
        py::cast(std::make_unique<RecordObject>(RecordObject{std::move(answer.record), {}}));
    py::object plan = py::none();
    if (answer.plan != nullptr) plan = PlanOf(&answer, record, hook, refusals, plan_type);
    out[i] = py::make_tuple(record, plan);
  }
  return out;
}

}  // namespace

void DefineStore(py::module_& m, const py::object& plan_type) {
  auto* type = reinterpret_cast<PyTypeObject*>(plan_type.ptr());  // the module keeps it alive
  py::class_<RecordObject>(m, "PlanRecord", "What a store holds of one plan.")
      .def(py::init(&MakeRecord), py::arg("name"), py::arg("uids"), py::arg("document"))
      .def_property_readonly("name", [](const RecordObject& self) { return self.record.name; })
      .def_property_readonly("graph_key",
                             [](const RecordObject& self) { return self.record.graph_key; })
      .def_property_readonly("target", [](const RecordObject& self) { return self.record.target; })
      .def_property_readonly("engine", [](const RecordObject& self) { return self.record.engine; })
      .def_property_readonly("engine_id",
                             [](const RecordObject& self) { return self.record.engine_id; })
      .def_property_readonly("uids", [](const RecordObject& self) { return self.record.uids; })
      .def_property_readonly("kernels", &KernelsOf)
      .def_property_readonly("blobs", [](const RecordObject& self) { return self.record.blobs; })
      .def_property_readonly(
          "device", [](const RecordObject& self) { return self.record.is_cuda ? "cuda" : "cpu"; })
      .def_property(
          "bytes", [](const RecordObject& self) { return self.record.bytes; },
          [](RecordObject& self, int64_t bytes) { self.record.bytes = bytes; })
      .def_property(
          "ns", [](const RecordObject& self) { return self.record.ns; },
          [](RecordObject& self, int64_t ns) { self.record.ns = ns; })
      .def_property_readonly("what", [](const RecordObject& self) { return self.record.What(); })
      .def_property_readonly("document", &DocumentOf)
      .def(
          "check_host",
          [](const RecordObject& self, const Host& host) {
            CheckHost(self.record.requirements, self.record.What(), host);
          },
          py::arg("host"))
      .def(
          "check_device",
          [](const RecordObject& self, const std::string& what, int device,
             const py::dict& attributes) {
            CheckDevice(self.record.requirements, what, device, AttributesFrom(attributes));
          },
          py::arg("what"), py::arg("device"), py::arg("attributes"));
  py::class_<HeldGraphs>(m, "HeldGraphs",
                         "What this process holds of a store, for as long as the object lives.")
      .def(py::init([](const py::bytes& path) { return std::make_unique<HeldGraphs>(path); }),
           py::arg("path"))
      .def(  // with the interpreter lock, so that no thread forks meanwhile
          "take",
          [](HeldGraphs& self, const py::str& target, const std::string& graph_key) {
            self.Take(NameOf(target), graph_key);
          },
          py::arg("target"), py::arg("graph_key"));
  py::class_<StoreObject>(m, "Store", "The files of a store, or of several that lie in layers.")
      .def(py::init(&OpenStore), py::arg("layers"), py::arg("target") = "",
           py::arg("digests") = std::vector<std::string>())
      .def_property_readonly(
          "path", [](const StoreObject& self) { return PathText(self.store.layers().path()); })
      .def_property_readonly("layers", &LayersOf)
      .def("root_digests",
           [](const StoreObject& self) {
             return WithoutGil([&] {
               std::vector<std::string> out;
               for (const StoreReader& reader : self.store.layers().readers()) {
                 out.push_back(reader.RootDigest());
               }
               return out;
             });
           })
      .def("take_faults", &TakeFaults)
      .def("names", [](const StoreObject& self) { return self.store.layers().Names(); })
      .def("targets", [](const StoreObject& self) { return self.store.layers().Targets(); })
      .def(
          "need_target",
          [](const StoreObject& self, const py::str& target) {
            self.store.NeedTarget(NameOf(target));
          },
          py::arg("target"))
      .def(
          "holds",
          [](const StoreObject& self, const std::string& target, const std::string& name) {
            return self.store.layers().Holds(target, name);
          },
          py::arg("target"), py::arg("name"))
      .def(
          "blob",
          [](const StoreObject& self, const std::string& digest) {
            return py::bytes(WithoutGil([&] { return self.store.layers().Blob(digest); }));
          },
          py::arg("digest"))
      .def("find", &FindOf, py::arg("name"), py::arg("target") = "")
      .def(
          "load",
          [type](const StoreObject& self, const py::list& requests, const std::string& provider,
                 const Host* host, const py::object& hook, const py::dict& refusals) {
            return LoadAll(self.store, requests, provider, host, hook, refusals, type);
          },
          py::arg("requests"), py::arg("provider") = "", py::arg("host") = py::none(),
          py::arg("hook") = py::none(), py::arg("refusals") = py::dict());
}

}  // namespace cudnn_aot
