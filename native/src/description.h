// A resolved call as Python data.
#pragma once

#include <pybind11/pybind11.h>

#include "plan.h"

namespace cudnn_aot {

// What `resolve` returns for a frame that Plan::Resolve filled for `call`.
pybind11::dict DescribeCall(const Plan& plan, const Call& call, Frame* frame);

}  // namespace cudnn_aot
