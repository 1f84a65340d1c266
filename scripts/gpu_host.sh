#!/usr/bin/env bash
# Run on a machine with a GPU, offline: install the serving half, execute the store that
# `make gpu-host` built elsewhere, run the GPU tests, print tables. See docs/gpu-host.md.
#
#   scripts/gpu_host.sh [FOLDER] [--no-bench] [--sanitize] [-- PYTEST ARGUMENTS]
#
# --sanitize runs one plan of each kind under the tools of compute-sanitizer too.
# FOLDER is what `make gpu-host` gathered (default gpu_host). Nothing is compiled or downloaded;
# PYTHON (default python3) must have scikit-build-core, pybind11, cmake, ninja, pytest, numpy, torch.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=gpu_host
bench=1
sanitize=0
while (($#)); do
  case $1 in
    --no-bench) bench=0 ;;
    --sanitize) sanitize=1 ;;
    --) shift; break ;;
    *) folder=$1 ;;
  esac
  shift
done
python=${PYTHON:-python3}
site=${GPU_HOST_SITE:-build/gpu_host_site}
failed=()

step() {
  local title=$1
  shift
  printf '\n== %s\n' "$title"
  "$@" || failed+=("$title")
}

# Tiles, splits, stream-K, ping-pong, turns, few rows, chains, folds, gated FFNs, FP8, INT8, piped
# inputs, batches, the GEMV, any strides and grouped matmuls: small, as a tool slows all down.
sanitized=(
  absorbed amax_fp8 batch_of_any_m columns columns_odd crowded_odd_n dynamic_m dynamic_m_chain
  folds_split_k folds_split_k_in_cluster fp8 fp8_stream_k gated gated_amax_fp8 gated_int8
  grouped_queries groups_any_m groups_gather groups_tma_fp8 groups_tma_gather groups_tma_scatter
  heads_scores_few_rows heads_scores_one_row heads_values_fused int8_scaled_few_rows int8_stream_k
  optional_output pingpong pingpong_column pingpong_int8 residual_any_m residual_batch_apart
  residual_fp8 residual_gated residual_more residual_odd_m split_k_in_cluster spread_both stream_k
)
# racecheck does not follow the mbarrier that alone orders the reads of scales of blocks.
scaled=(blocks_amax blocks_few_rows blocks_gated blocks_stream_k)

sanitize() {
  local tool=$1
  shift
  compute-sanitizer --tool "$tool" --error-exitcode 1 "$site/bin/cudnn-aot" run "$@" --target h200
}

# Built against what was installed; the process that serves has no Python in it.
cpp_server() {
  local build=build/gpu_host_cpp plan=bench_128x256x128 cudart
  cudart=$("$python" -c 'from cudnn_aot.runtime import cudart; print(cudart.find())') || return
  cmake -S examples/cpp-server -B "$build" \
    -Dcudnn_aot_DIR="$("$python" -m cudnn_aot --cmakedir)" > "$build.log" &&
    cmake --build "$build" >> "$build.log" &&
    for request in 1 2 3 4; do echo "$plan"; done |
    CUDNN_AOT_CUDART=$cudart "$build/server" --target h200 --threads 1 --repeat 10000 "$plan"
}

install() {
  rm -rf "$site"
  "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" \
    "$folder"/wheels/*.whl &&
    "$python" -m pip install -q --no-index --no-deps --no-build-isolation --no-compile \
      --upgrade --target "$site" .
}

printf '== install into %s\n' "$site"
if ! install; then
  echo 'error: the offline install failed' >&2
  exit 1
fi
site=$(cd "$site" && pwd)
export PYTHONPATH=$site PATH=$site/bin:$PATH
export CUDNN_AOT_STORE=$PWD/$folder/store CUDNN_AOT_TEST_STORE=$PWD/$folder/store
export CUDNN_AOT_TEST_PEER_STORE=$PWD/$folder/peer
export CUDNN_AOT_FORBID_COMPILE=1
if [[ -d $folder/configs ]]; then
  export CUDNN_AOT_TEST_CONFIG_STORE=$PWD/$folder/configs
fi

step doctor cudnn-aot doctor
step verify cudnn-aot verify
if ((bench)); then
  step 'every plan for h200' cudnn-aot run --all --target h200 --bench
else
  step 'every plan for h200' cudnn-aot run --all --target h200
fi
if ((bench)); then
  step 'C++ server' cpp_server
fi
step 'GPU tests' "$python" -m pytest -q -m gpu tests/gpu "$@"
if ((sanitize)); then
  for tool in memcheck synccheck initcheck; do
    step "$tool" sanitize "$tool" "${sanitized[@]}" "${scaled[@]}"
  done
  step racecheck sanitize racecheck "${sanitized[@]}"
fi
if ((bench)); then
  for script in bench/shapes.py bench/tensor_cores.py bench/launch.py; do
    step "$script" "$python" "$script" --store "$folder/store"
  done
  step bench/grouped.py "$python" bench/grouped.py --store "$folder/grouped"
fi

printf '\n== result\n'
if ((${#failed[@]})); then
  printf 'failed: %s\n' "${failed[@]}"
  exit 1
fi
echo 'everything passed'
