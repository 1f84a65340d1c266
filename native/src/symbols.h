// Binding of a graph's symbols at a call.
#pragma once

#include "pack.h"

namespace cudnn_aot {

// In order: the call's values, its overrides, then the lowest-uid operand whose buffer equals its
// declaration up to unit axes. Throws Refusal ("symbol_range", "symbol_unbound", "extents").
void BindSymbols(const Table& table, const Call& call, Frame* frame);

// Refuses a value outside the symbol's declaration ("symbol_range"); `binder` is the operand that
// it was read from, or null.
void CheckRange(const Symbol& symbol, int64_t value, const Operand* binder);

// Refuses a name, as shown, that is none of the table's symbols ("symbol_unknown").
[[noreturn]] void RefuseSymbol(const Table& table, const std::string& shown);

}  // namespace cudnn_aot
