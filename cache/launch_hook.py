"""The launch hook of a GPU kernel: the function that its launches try before the CUDA runtime.

The linked kernel exports the pointer ``NAME``, null until a process that serves sets it. The
function is called as cuLaunchKernelEx; configuration and kernel handle of the runtime are those of
the driver, which saves the runtime's part of a launch. What it refuses, the runtime launches or
names. The process may also record a launch there in place of making it, so that a call of the
kernel has no effect. Hence only a kernel whose host function does nothing but launch has a hook.
"""

from __future__ import annotations

from cudnn_aot.cache import elf

NAME = "cudnn_aot_launch"

FLAGS = (
    "-O2",
    "-fPIC",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-ident",  # of the compiler and its distribution
    "-Wl,--wrap=cudaLaunchKernelExC",
    "-Wl,-Bsymbolic",  # each kernel has a pointer of its own
)
# What the device runtime names beside what a launch comes to. A symbol that is looked up when the
# kernel is loaded takes 90 bytes, and these are never called.
UNCALLED = (
    "cudaDeviceSynchronize cudaEventCreate cudaEventDestroy cudaEventElapsedTime cudaEventRecord "
    "cudaFree cudaFreeAsync cudaFreeHost cudaGraphDestroy cudaGraphExecDestroy "
    "cudaGraphInstantiate cudaGraphLaunch cudaLibraryGetGlobal cudaLibraryGetKernelCount "
    "cudaLibraryGetManaged cudaLibraryGetUnifiedFunction cudaLibraryLoadFromFile cudaMalloc "
    "cudaMallocAsync cudaMallocHost cudaMallocManaged cudaMemcpy cudaMemcpyAsync cudaMemset "
    "cudaMemsetAsync cudaOccupancyMaxActiveBlocksPerMultiprocessor cudaProfilerStart "
    "cudaProfilerStop cudaStreamAddCallback cudaStreamBeginCapture cudaStreamCreate "
    "cudaStreamDestroy cudaStreamEndCapture cudaStreamSynchronize cudaStreamWaitEvent".split()
)
_ABSENT = "\n".join(
    f'__attribute__((visibility("hidden"), alias("absent"))) void {name}(void);'
    for name in UNCALLED
)
SOURCE = f"""\
__attribute__((visibility("hidden"), noreturn)) void absent(void) {{ __builtin_trap(); }}
{_ABSENT}
typedef int Launch(const void *config, const void *kernel, void **params, void **extra);
Launch *{NAME};
int __real_cudaLaunchKernelExC(const void *, const void *, void **);
int __wrap_cudaLaunchKernelExC(const void *config, const void *kernel, void **params) {{
  Launch *launch = {NAME};
  if (launch && launch(config, kernel, params, 0) == 0) return 0;
  return __real_cudaLaunchKernelExC(config, kernel, params);
}}
"""

# What host functions call of the DSL's device runtime: launches, queries, and the loading of code.
HARMLESS = frozenset(
    "_cudaLaunchKernelEx _cudaGetDevice _cudaDeviceGetAttribute _cuKernelGetAttribute "
    "_cudaLibraryLoadData _cudaLibraryGetKernel _cudaFuncSetAttribute _cudaSetDevice "
    "_cudaKernelSetAttributeForDevice _cuTensorMapEncodeTiled _cuTensorMapEncodeIm2col".split()
)


def fits(kernel: bytes) -> bool:
    """Whether the host functions of an object do nothing but launch."""
    called = {name for name in elf.undefined_symbols(kernel) if name.startswith("_cu")}
    return "_cudaLaunchKernelEx" in called and called <= HARMLESS
