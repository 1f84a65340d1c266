#!/usr/bin/env bash
# Build the example graphs for a GPU and for the CPU on a machine without a GPU, then execute the
# CPU plans from the store and compare every result with the reference.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
store=${1:-demo_store}

say() { printf '\n$ cudnn-aot %s\n' "$*"; }

say "build examples/graphs/*.json --target h200,cpu --store $store"
cudnn-aot build examples/graphs/*.json --target h200,cpu --store "$store"
say "verify --store $store"
cudnn-aot verify --store "$store"
say "run --all --target cpu --bench --store $store"
cudnn-aot run --all --target cpu --bench --store "$store"
