#!/bin/sh
# Builds the native module with a sanitizer of gcc and runs tests under it.
#
#   scripts/sanitize.sh address|thread PYTHON [pytest arguments]
#
# The build and an environment that sees it in place of the installed module lie in
# build/sanitize/NAME, and its reports. Python itself is not instrumented: its locks are seen, its memory is not.
set -eu
name=$1
python=$2
shift 2
root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/build/sanitize/$name
mkdir -p "$out/package/cudnn_aot"

case $name in
address) flags="-fsanitize=address,undefined -fno-sanitize-recover=undefined" runtime=libasan.so ;;
thread) flags="-fsanitize=thread" runtime=libtsan.so ;;
*) echo "sanitize.sh: got '$name', want address or thread" >&2 && exit 2 ;;
esac

cmake=$("$python" -c 'import cmake, pathlib; print(pathlib.Path(cmake.CMAKE_BIN_DIR, "cmake"))' 2>/dev/null || command -v cmake)
"$cmake" -S "$root/native" -B "$out/build" \
  -DSKBUILD_PROJECT_VERSION="$("$python" -c 'import cudnn_aot; print(cudnn_aot.__version__)')" \
  -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_COMPILER=g++ \
  -DCMAKE_CXX_FLAGS="-O1 -g -fno-omit-frame-pointer $flags" \
  -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" \
  -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" >"$out/cmake.log"
"$cmake" --build "$out/build" --parallel "$(nproc)" >>"$out/cmake.log"
ln -sf "$(find "$out/build" -name '_native*.so' | head -n 1)" "$out/package/cudnn_aot/"
mkdir -p "$out/package/cudnn_aot/lib"
ln -sf "$out/build/libcudnn_aot.so" "$out/package/cudnn_aot/lib/"
for folder in compiler cache runtime cli recipes; do
  ln -sfn "$root/$folder" "$out/package/cudnn_aot/$folder"
done
for file in "$root"/native/cudnn_aot/*.py*; do ln -sf "$file" "$out/package/cudnn_aot/"; done

# The hook of an editable install would find the module that is not instrumented: this environment
# has the packages of the other one without its hooks.
"$python" -m venv --without-pip "$out/venv"
site=$("$out/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/others.pth"

# libstdc++ beside the sanitizer, or the latter finds no exceptions to intercept.
preload="$(g++ -print-file-name=$runtime) $(g++ -print-file-name=libstdc++.so.6)"
cd "$root"
rm -f "$out"/report.*
ffi=$("$python" -c 'from cudnn_aot.runtime.plan import find_ffi; print(find_ffi())')
# Addresses are not randomised: gcc's thread sanitizer knows no mapping for some of them.
status=0
setarch -R env \
  LD_PRELOAD="$preload" CUDNN_AOT_TVM_FFI="$ffi" PYTHONPATH="$out/package" PYTHONMALLOC=malloc PYTHONDONTWRITEBYTECODE=1 \
  ASAN_OPTIONS="detect_leaks=0:detect_stack_use_after_return=1:log_path=$out/report" \
  UBSAN_OPTIONS="print_stacktrace=1:log_path=$out/report" \
  TSAN_OPTIONS="halt_on_error=0:exitcode=66:log_path=$out/report" \
  "$out/venv/bin/python" -m pytest -p no:cacheprovider "$@" || status=$?
# A report of a test that passed is in no output of pytest's.
for report in "$out"/report.*; do
  [ -e "$report" ] || continue
  cat "$report" >&2
  status=1
done
exit $status
