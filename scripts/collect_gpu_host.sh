#!/usr/bin/env bash
# Gather in FOLDER what a machine with a GPU, without network and without the compiler, needs beside
# the checkout: a store built here and the serving dependency. See docs/gpu-host.md.
#
#   scripts/collect_gpu_host.sh FOLDER [--every-config]
#
# --every-config adds a store with every schedule of the kernels that have some, which takes minutes.
# GPU_HOST_PYTHON (default 3.12) is the Python version of that machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:?usage: collect_gpu_host.sh FOLDER [--every-config]}
python_version=${GPU_HOST_PYTHON:-3.12}
limit_mib=60

mkdir -p "$folder/wheels" "$folder/graphs"
echo "graphs of the GPU tests and benches"
python tests/support/gemm_graphs.py "$folder/graphs"
python tests/support/batch_graphs.py "$folder/graphs"
python tests/support/moe_graphs.py "$folder/graphs"
python tests/support/pointwise_graphs.py "$folder/graphs"
cudnn-aot build examples/graphs/*.json "$folder"/graphs/*.json \
  --target h200,cpu --store "$folder/store" --allow-declined all
cudnn-aot verify --store "$folder/store"
echo "graphs of public programs"
# Apart from those that `run --all` judges in numpy, which takes minutes for their weights.
mapfile -t peer_graphs < <(python tests/support/graph_tables.py)
cudnn-aot build "${peer_graphs[@]}" --target h200 --store "$folder/peer" --allow-declined all
cudnn-aot verify --store "$folder/peer"
echo "grouped matmuls of the bench"
# Apart for the same reason.
python tests/support/moe_graphs.py "$folder/grouped_graphs" bench
cudnn-aot build "$folder"/grouped_graphs/*.json --target h200 --store "$folder/grouped"
cudnn-aot verify --store "$folder/grouped"
if [[ ${2:-} == --every-config ]]; then
  python tests/support/config_store.py "$folder/configs"
fi

# For the other machine's Python, in the versions that are installed here: what loads a kernel must be
# what it was compiled with. msgspec is for `why` and for building plans of cuDNN's there.
pins=()
missing=0
for name in apache-tvm-ffi msgspec; do
  version=$(python -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$name")
  pins+=("$name==$version")
  compgen -G "$folder/wheels/${name//-/_}-$version-*.whl" > /dev/null || missing=1
done
if ((missing)); then
  rm -f "$folder"/wheels/*.whl
  python -m pip download -q --no-deps --only-binary=:all: --dest "$folder/wheels" \
    --python-version "$python_version" --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
    --platform manylinux_2_24_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 "${pins[@]}"
fi

size_mib=$(du -sm "$folder" | cut -f1)
echo
echo "$folder: $size_mib MiB"
du -sh "$folder"/*
if ((size_mib > limit_mib)); then
  echo "error: $folder holds $size_mib MiB, want $limit_mib at most" >&2
  exit 1
fi
echo "next: copy the checkout with $folder to the GPU host, run scripts/gpu_host.sh there"
