#!/usr/bin/env bash
# Build the example graphs for a GPU and for the CPU on a machine without a GPU, then execute the
# CPU plans from the store and compare every result with the reference.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
store=${1:-demo_store}

say() { printf '\n$ %s\n' "$*"; "$@"; }

say cudnn-aot build examples/graphs/*.json --target h200,cpu --store "$store"
say cudnn-aot verify --store "$store"
say cudnn-aot run --all --target cpu --store "$store"
