// What plans require of a machine, for `runtime.requirements`; the binding layer only.
#pragma once

#include <pybind11/pybind11.h>

#include "cuda.h"

namespace cudnn_aot {

// Of the attributes of a device as Python has them, those that plans may require.
cuda::Attributes AttributesFrom(const pybind11::dict& attributes);

void DefineRequirements(pybind11::module_& m);

}  // namespace cudnn_aot
