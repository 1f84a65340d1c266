// What plans require of a machine, for `runtime.requirements`; the binding layer only.
#pragma once

#include <pybind11/pybind11.h>

namespace cudnn_aot {

void DefineRequirements(pybind11::module_& m);

}  // namespace cudnn_aot
