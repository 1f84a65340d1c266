// Binding of a graph's symbols at a call.
#pragma once

#include "pack.h"

namespace cudnn_aot {

// In order: the call's values, its overrides, then the lowest-uid operand whose buffer equals its
// declaration up to unit axes. Throws Refusal ("symbol_range", "symbol_unbound", "extents").
void BindSymbols(const Table& table, const Call& call, Frame* frame);

}  // namespace cudnn_aot
