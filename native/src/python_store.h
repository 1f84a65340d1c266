// A store as Python serves it: plan records, and many plans at once.
#pragma once

#include <pybind11/pybind11.h>

namespace cudnn_aot {

void DefineStore(pybind11::module_& m, const pybind11::object& plan_type);

}  // namespace cudnn_aot
